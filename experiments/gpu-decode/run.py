"""Decode on one GPU: captured rounds beside eager ones and `transformers`, one run.

    python experiments/gpu-decode/run.py --out experiments/gpu-decode/results.jsonl

Each figure is the median of five repeats of one continuation (min and max beside it); a repeat
rewinds the session to the state behind the prompt. One JSON line a configuration, printed as it
ends, so that a run that is cut short keeps what it has.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.lm import LanguageModel, bundled_model_path, load_model
from strata.passages import load_passage
from strata.session import create_session

REPEATS = 5


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def strata_arm(model: LanguageModel, ids: list[int], new: int, **knobs: Any) -> dict[str, Any]:
    config = SessionConfig(
        kv=KvConfig(
            resident_cells=knobs.get("ring", 0),
            selection=Selection(cells=knobs.get("select", 0)),
        ),
        spec=SpecConfig(drafts=knobs["drafts"], window_cells=knobs.get("window", 4096)),
        rounds="captured" if knobs["graphs"] else "reference",
    )
    session = create_session(model, config, prompt_cells=len(ids), max_new=new, environ={})
    prefill = session.prefill(ids)
    params = SamplingParams(max_new=new, ignore_eos=True)
    session.generate(params)
    runs = []
    for _ in range(REPEATS):
        session.rewind()
        runs.append(session.generate(params))
    last = runs[-1]
    result = {
        "prefill_tok_s": len(ids) / prefill.seconds,
        "tok_s": spread([r.decode_tok_s or 0 for r in runs]),
        "rounds_s": spread([r.rounds_per_s or 0 for r in runs]),
        "tokens_round": last.tokens_per_round,
        "token_hash": last.token_hash,
        "kv": [last.kv.lookups, last.kv.hits, last.kv.misses, last.kv.overflows],
        "ledger": session.ledger,
        "engine": type(session.engine).__name__,
    }
    session.close()
    return result


class Clock:
    """A streamer that keeps when each token came."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        torch.cuda.synchronize()
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def peer_arm(peer: Any, ids: list[int], new: int, **options: Any) -> dict[str, Any]:
    rates: list[float] = []
    for _ in range(REPEATS + 1):
        clock = Clock()
        with torch.inference_mode():
            peer.generate(
                torch.tensor([ids], device="cuda"),
                max_new_tokens=new,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                streamer=clock,
                **options,
            )
        rates.append((new - 1) / (clock.times[-1] - clock.times[1]))
    return {"tok_s": spread(rates[1:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=bundled_model_path())
    parser.add_argument("--depths", type=int, nargs="+", default=[1024, 4096, 32768, 131072])
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peers", nargs="*", default=["dynamic", "static"])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model = load_model(args.model, "cuda")
    peer = None
    if args.peers:
        import transformers

        peer = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
        peer = peer.cuda().eval()
    with args.out.open("a") as out:

        def record(what: dict[str, Any], run: Any) -> None:
            try:
                result = run()
            except Exception as error:
                traceback.print_exc()
                result = {"error": f"{type(error).__name__}: {error}"[:300]}
            line = {**what, **result}
            out.write(json.dumps(line) + "\n")
            out.flush()
            brief = {k: v for k, v in line.items() if k not in ("ledger", "token_hash")}
            print(json.dumps(brief), flush=True)

        for depth in args.depths:
            ids = load_passage(f"{depth}:{args.seed}", model.tokenizer)
            arms: list[dict[str, Any]] = [
                {"drafts": 0, "graphs": True},
                {"drafts": 1, "graphs": True},
                {"drafts": 3, "graphs": True},
                {"drafts": 0, "graphs": False},
                {"drafts": 0, "graphs": True, "ring": 8192 if depth > 8192 else 512},
                {
                    "drafts": 0,
                    "graphs": False,
                    "ring": 8192 if depth > 8192 else 512,
                    "select": 256,
                },
            ]
            for knobs in arms:
                new = args.new if knobs["graphs"] else 64
                record(
                    {"arm": "strata", "depth": depth, "new": new, **knobs},
                    lambda ids=ids, new=new, knobs=knobs: strata_arm(model, ids, new, **knobs),
                )
            if depth > 4096:
                continue
            for name in args.peers:
                options = {"cache_implementation": "static"} if name == "static" else {}
                record(
                    {"arm": f"transformers {name}", "depth": depth, "new": 128},
                    lambda ids=ids, options=options: peer_arm(peer, ids, 128, **options),
                )


if __name__ == "__main__":
    main()
