"""Decode on the CPU, strata beside `transformers`, same checkpoint, same prompts, one run.

    python experiments/cpu-decode/run.py --out experiments/cpu-decode/results.json

Every passage runs every arm once in each direction (A B C ... C B A), so that drift of the
machine falls on all arms alike. A figure is the mean over passages of the log ratio to a
reference arm, with a 95 % t interval; passages are the sample, repeats are averaged first.
Decode rate is (new - 1) / (last - first token's arrival) in every arm.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from scipy import stats

from strata.config import SamplingParams, SessionConfig, SpecConfig
from strata.lm import LanguageModel, bundled_model_path, load_model
from strata.passages import load_passage
from strata.session import create_session

Result = dict[str, float]
STRATA_ARMS: dict[str, Any] = {"strata off": 0, "strata 1": 1, "strata 3": 3, "strata auto": "auto"}
PEER_ARMS = {"transformers": False, "transformers mtp": True}


class Clock:
    """A streamer that keeps when each call of `put` came; the first is the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.tokens = 0

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def run_strata(model: LanguageModel, ids: list[int], drafts: Any, new: int) -> Result:
    config = SessionConfig(spec=SpecConfig(drafts=drafts))
    session = create_session(model, config, prompt_cells=len(ids), max_new=new, environ={})
    session.prefill(ids)
    session.generate(SamplingParams(max_new=8, ignore_eos=True))
    session.rewind()
    done = session.generate(SamplingParams(max_new=new, ignore_eos=True))
    assert done.decode_tok_s
    assert done.rounds_per_s
    assert done.tokens_per_round
    return {
        "tok_s": done.decode_tok_s,
        "rounds_s": done.rounds_per_s,
        "tokens_round": done.tokens_per_round,
        "hash": int(done.token_hash[:8], 16),
    }


def run_peer(peer: Any, ids: list[int], use_mtp: bool, new: int) -> Result:
    clock = Clock()
    with torch.inference_mode():
        out = peer.generate(
            torch.tensor([ids]),
            max_new_tokens=new,
            do_sample=False,
            eos_token_id=None,
            use_mtp=use_mtp,
            streamer=clock,
        )
    from strata.generation import hash_tokens

    tokens = out[0, len(ids) :].tolist()
    return {
        "tok_s": (len(tokens) - 1) / (clock.times[-1] - clock.times[1]),
        "hash": int(hash_tokens(tokens)[:8], 16),
    }


def ratio(rows: list[dict[str, Result]], arm: str, over: str) -> dict[str, float]:
    """Return the mean ratio of decode rates over passages with its 95 % t interval."""
    logs = [math.log(row[arm]["tok_s"] / row[over]["tok_s"]) for row in rows]
    mean = statistics.fmean(logs)
    reach = 0.0
    if len(logs) > 1:
        reach = float(stats.t.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / len(logs) ** 0.5
    return {"ratio": math.exp(mean), "low": math.exp(mean - reach), "high": math.exp(mean + reach)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=bundled_model_path())
    parser.add_argument("--cells", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--passages", type=int, default=6)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = load_model(args.model, "cpu")
    peer = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    rows: list[dict[str, Result]] = []
    for cells in args.cells:
        for seed in range(args.passages):
            ids = load_passage(f"{cells}:{seed}", model.tokenizer)
            runs: dict[str, list[Result]] = {}
            arms = [*STRATA_ARMS, *PEER_ARMS]
            for arm in [*arms, *reversed(arms)]:
                result = (
                    run_strata(model, ids, STRATA_ARMS[arm], args.new)
                    if arm in STRATA_ARMS
                    else run_peer(peer, ids, PEER_ARMS[arm], args.new)
                )
                runs.setdefault(arm, []).append(result)
            row = {
                arm: {key: statistics.fmean(r[key] for r in results) for key in results[0]}
                for arm, results in runs.items()
            }
            if len({row[arm]["hash"] for arm in row}) > 1:
                print(f"{cells}:{seed}: the arms' tokens differ (a near tie flips greedy decoding)")
            rows.append(row)
            rates = "  ".join(f"{arm} {row[arm]['tok_s']:.0f}" for arm in row)
            print(f"{cells}:{seed}  {rates}", flush=True)
    table = {
        "strata off / transformers": ratio(rows, "strata off", "transformers"),
        "strata auto / transformers mtp": ratio(rows, "strata auto", "transformers mtp"),
        **{f"{arm} / strata off": ratio(rows, arm, "strata off") for arm in list(STRATA_ARMS)[1:]},
    }
    for name, r in table.items():
        print(f"{name:32} {r['ratio']:.2f}x  [{r['low']:.2f}, {r['high']:.2f}]")
    worst = min(row["strata auto"]["tok_s"] / row["strata off"]["tok_s"] for row in rows)
    for arm in STRATA_ARMS:
        rounds = statistics.median(row[arm]["rounds_s"] for row in rows)
        per_round = statistics.median(row[arm]["tokens_round"] for row in rows)
        print(f"{arm:12} {rounds:6.0f} rounds/s x {per_round:.2f} tokens/round (medians)")
    print(f"worst passage of auto over off: {worst:.2f}x")
    document = {
        "ratios": table,
        "worst_auto_over_off": worst,
        "rows": rows,
        "threads": args.threads,
        "cells": args.cells,
        "passages": args.passages,
        "new": args.new,
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "model_hash": model.model_hash,
    }
    if args.out:
        args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
