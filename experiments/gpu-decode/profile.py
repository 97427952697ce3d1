"""Which kernels a captured round launches, and how long each takes, by torch's profiler.

    python experiments/gpu-decode/profile.py --out experiments/gpu-decode/profile.jsonl

`strata bench decode` prints the same by part; this keeps every kernel's name, for cases that were
compared over time. A session a case: prompt, one generation that captures the graphs, then rounds
under the profiler. One JSON line a case.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from strata.bench.profile import profile_rounds
from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.lm import LanguageModel, bundled_model_path, load_model
from strata.passages import load_passage
from strata.sampling import Sampler
from strata.session import Session, create_session
from strata.units import parse_bytes

ROUNDS = 40
CASES: tuple[dict[str, Any], ...] = (
    {"depth": 1_024, "drafts": 0},
    {"depth": 1_024, "drafts": 3},
    {"depth": 32_768, "drafts": 0},
    {"depth": 131_072, "drafts": 0},
    {"depth": 131_072, "drafts": 3},
    {"depth": 131_072, "drafts": 0, "select": 2_048},
    {"depth": 131_072, "drafts": 0, "select": 2_048, "ring": 32_768},
    {"depth": 131_072, "drafts": 3, "select": 2_048, "ring": 32_768},
    {"depth": 32_768, "drafts": 0, "select": 2_048, "ring": 6_144, "budget": "40MiB"},
    {"depth": 32_768, "drafts": 3, "select": 2_048, "ring": 6_144, "budget": "40MiB"},
)


def wall_us(session: Session, sampler: Sampler, drafts: int) -> float:
    """Return what a round takes by the clock: the least of three runs of ROUNDS rounds."""
    engine, times = session.engine, []
    for _ in range(3):
        session.rewind()
        engine.first_token(sampler)
        engine.round(sampler, drafts)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(ROUNDS):
            engine.round(sampler, drafts)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / ROUNDS * 1e6)
    return min(times)


def profile(model: LanguageModel, case: dict[str, Any]) -> dict[str, Any]:
    """Return kernels and times of a round of `case`."""
    ids = load_passage(f"{case['depth']}:0", model.tokenizer)
    budget = case.get("budget")
    config = SessionConfig(
        kv=KvConfig(
            resident_cells=case.get("ring", 0), selection=Selection(cells=case.get("select", 0))
        ),
        spec=SpecConfig(drafts=case["drafts"], window_cells=4_096),
        vram_budget_bytes=parse_bytes(budget, name="budget") if budget else None,
    )
    params = SamplingParams(max_new=(ROUNDS + 4) * (case["drafts"] + 1), ignore_eos=True)
    session = create_session(
        model, config, prompt_cells=len(ids), max_new=params.max_new, environ={}
    )
    session.prefill(ids)
    session.generate(params)
    wall = wall_us(session, Sampler(params), case["drafts"])
    found = profile_rounds(session, params, case["drafts"])
    session.close()
    return {
        **case,
        "wall_us_round": wall,
        "kernel_us_round": found.us_round,
        "kernels_round": found.per_round,
        **asdict(found),
    }


def main() -> None:
    """Profile every case and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=bundled_model_path())
    parser.add_argument("--cases", type=int, nargs="*", help="numbers of cases, all without")
    parser.add_argument("--top", type=int, default=12, help="kernels a case that are printed")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model = load_model(args.model, "cuda")
    with args.out.open("w", encoding="utf-8") as out:
        for number in args.cases or range(len(CASES)):
            figure = profile(model, CASES[number])
            out.write(json.dumps(figure) + "\n")
            out.flush()
            print({k: v for k, v in figure.items() if k not in ("kernels", "parts")}, flush=True)
            for name, one in list(figure["kernels"].items())[: args.top]:
                print(f"  {one['us_round']:7.1f} us = {one['per_round']:6.1f} x  {name[:70]}")


if __name__ == "__main__":
    main()
