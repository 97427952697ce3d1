"""Which kernels a captured round launches, and how long each takes, by torch's profiler.

    python experiments/gpu-decode/profile.py --out experiments/gpu-decode/profile.jsonl

A session a configuration: prompt, one generation that captures the graphs, then `ROUNDS` rounds
under the profiler. Kernel times are the device's; what the rounds took by the clock stands beside
their sum, so that launches and gaps show. One JSON line a configuration.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType

from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.lm import LanguageModel, bundled_model_path, load_model
from strata.passages import load_passage
from strata.sampling import Sampler
from strata.session import create_session
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
    engine, sampler = session.engine, Sampler(params)

    def rounds() -> float:
        session.rewind()
        engine.first_token(sampler)
        engine.round(sampler, case["drafts"])
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(ROUNDS):
            engine.round(sampler, case["drafts"])
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / ROUNDS * 1e6

    wall = min(rounds() for _ in range(3))
    session.rewind()
    engine.first_token(sampler)
    engine.round(sampler, case["drafts"])
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        for _ in range(ROUNDS):
            engine.round(sampler, case["drafts"])
        torch.cuda.synchronize()
    session.close()
    total: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    begin, end = float("inf"), 0.0
    for event in recorded.events():
        if event.device_type == DeviceType.CUDA:
            total[event.name][0] += 1
            total[event.name][1] += event.device_time
            begin = min(begin, event.time_range.start)
            end = max(end, event.time_range.end)
    kernels = {
        name: {"per_round": count / ROUNDS, "us_each": us / count, "us_round": us / ROUNDS}
        for name, (count, us) in sorted(total.items(), key=lambda item: -item[1][1])
    }
    return {
        **case,
        "wall_us_round": wall,
        "kernel_us_round": sum(k["us_round"] for k in kernels.values()),
        "kernels_round": sum(k["per_round"] for k in kernels.values()),
        "profiled_span_us_round": (end - begin) / ROUNDS,
        "kernels": kernels,
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
            print({k: v for k, v in figure.items() if k != "kernels"}, flush=True)
            for name, one in list(figure["kernels"].items())[: args.top]:
                print(
                    f"  {one['us_round']:7.1f} us = {one['per_round']:6.1f} x {one['us_each']:5.2f}"
                    f"  {name[:70]}"
                )


if __name__ == "__main__":
    main()
