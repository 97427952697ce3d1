"""Prefill on one GPU beside `transformers` with fused attention, in turns.

    python experiments/prefill/run.py --out experiments/prefill/results.jsonl

All arms of a depth take turns, `--repeats` times after one warm-up each; a figure is the median,
with the least and the most. A session is created before its prompt is timed, and the prompt's time
includes seeding the ring. One JSON line an arm. What the driver sees of a budget is measured by
`experiments/budget/run.py`.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from strata.config import KvConfig, Selection, SessionConfig, SpecConfig
from strata.lm import LanguageModel, bundled_model_path, load_model
from strata.passages import load_passage
from strata.session import Session, create_session

MIB = 1 << 20
NEW_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to run a prompt; without a ring it is the peer."""

    depth: int
    ring: int | None = None
    budget_mib: int | None = None
    select: int = 0
    drafts: int = 0


def session_of(model: LanguageModel, arm: Arm) -> Session:
    config = SessionConfig(
        kv=KvConfig(resident_cells=arm.ring, selection=Selection(cells=arm.select)),
        spec=SpecConfig(drafts=arm.drafts),
        vram_budget_bytes=None if arm.budget_mib is None else arm.budget_mib * MIB,
    )
    return create_session(model, config, prompt_cells=arm.depth, max_new=NEW_TOKENS, environ={})


def strata_seconds(model: LanguageModel, arm: Arm, ids: list[int]) -> float:
    session = session_of(model, arm)
    torch.cuda.synchronize()
    seconds = session.prefill(ids).seconds
    session.close()
    del session
    gc.collect()  # a session's rounds refer to each other
    return seconds


def peer_seconds(peer: Any, ids: list[int]) -> float:
    tokens = torch.tensor([ids], device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    with torch.inference_mode():
        peer(tokens, use_cache=True, logits_to_keep=1)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def load_peer() -> Any:
    import transformers

    peer = transformers.AutoModelForCausalLM.from_pretrained(
        bundled_model_path(), dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    return peer.cuda().eval()


def time_depth(arms: list[Arm], repeats: int, report: Callable[..., None]) -> None:
    model, peer = load_model(bundled_model_path(), "cuda"), load_peer()
    ids = load_passage(f"{arms[0].depth}:0", model.tokenizer)
    times: dict[Arm, list[float]] = {arm: [] for arm in arms}
    for repeat in range(repeats + 1):
        for arm in list(times):
            try:
                seconds = (
                    peer_seconds(peer, ids) if arm.ring is None else strata_seconds(model, arm, ids)
                )
            except Exception:
                report(kind="failed", **asdict(arm), error=traceback.format_exc(limit=4))
                del times[arm]
                continue
            if repeat:
                times[arm].append(seconds * 1e3)
    reference = statistics.median(times[arms[0]])
    for arm, taken in times.items():
        middle = statistics.median(taken)
        report(
            kind="speed",
            **asdict(arm),
            peer=arm.ring is None,
            ms={"median": middle, "min": min(taken), "max": max(taken)},
            of_peer=reference / middle,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    parser.add_argument("--depths", type=int, nargs="+", default=[32768, 131072])
    parser.add_argument("--budgets", type=int, nargs="*", default=[64, 80], help="MiB")
    parser.add_argument("--ring", type=int, default=8192)
    parser.add_argument("--select", type=int, default=0)
    parser.add_argument("--drafts", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args()

    def report(**figure: Any) -> None:
        line = json.dumps({"device": torch.cuda.get_device_name(), **figure})
        print(line, flush=True)
        if given.out:
            with given.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    shared = {"select": given.select, "drafts": given.drafts}
    for depth in given.depths:
        budgets = [
            Arm(depth=depth, ring=given.ring, budget_mib=budget, **shared)
            for budget in given.budgets
        ]
        free = [Arm(depth=depth, ring=ring, **shared) for ring in (0, given.ring)]
        time_depth([Arm(depth=depth), *free, *budgets], given.repeats, report)
        gc.collect()


if __name__ == "__main__":
    main()
