"""Make up studies whose truth is known, to see how often the decision rule is right.

The noise has two sources, as measured ones have: how a ring suits a passage (shared by the runs
of a pair) and how a run differs from its repeat. Acceptance differs between passages and cancels
within a pair. Nothing here is ever mixed with measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from strata.models.decide import Rule, decide
from strata.models.frame import COLUMNS

RoundTime = Callable[[int, str, int], float]
"""Seconds of a round at (tier, mode, ring), without noise."""

ABBA = ("default", "arm", "arm", "default")
CELL_BYTES = 1_536
EXPERT_BYTES = 98_304
NUM_EXPERTS = 288


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The shape of a made-up study and its noise (standard deviations of log time)."""

    tiers_cells: Sequence[int] = (512, 1_024, 2_048, 4_096)
    rings_cells: Sequence[int] = (512, 1_024, 2_048)
    modes: Sequence[str] = ("off", "on")
    default_ring_cells: int = 1_024
    search_passages: int = 3
    fresh_passages: int = 0
    passage_sd: float = 0.01
    run_sd: float = 0.01
    drafts: int = 1
    max_new: int = 128
    budget_bytes: int | None = None


def constant_round(tier_cells: int, mode: str, ring_cells: int) -> float:
    """Return a round time that no ring changes: the study of pure noise."""
    del ring_cells
    return 0.004 * (1 + tier_cells / 16_384) * (1.4 if mode == "on" else 1.0)


def planted(gain_ratio: float, *, tier_cells: int, mode: str, ring_cells: int) -> RoundTime:
    """Return a round time in which one ring is faster by `gain_ratio` at one (tier, mode)."""

    def round_s(tier: int, drafter: str, ring: int) -> float:
        hit = (tier, drafter, ring) == (tier_cells, mode, ring_cells)
        return constant_round(tier, drafter, ring) / (1 + gain_ratio * hit)

    return round_s


def study(
    seed: int, design: Design | None = None, round_s: RoundTime = constant_round
) -> pd.DataFrame:
    """Return the trial frame of one made-up study."""
    design = design or Design()
    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    splits = ["search"] * design.search_passages + ["fresh"] * design.fresh_passages
    for tier in design.tiers_cells:
        for number, split in enumerate(splits):
            for mode in design.modes:
                accepted_ratio = float(rng.beta(8, 3)) if mode == "on" else 0.0
                for ring in design.rings_cells:
                    if ring != design.default_ring_cells:
                        pair = _Pair(tier, f"{tier}:{number}", split, mode, ring, accepted_ratio)
                        rows += _pair_runs(pair, design, round_s, rng)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def adoption_rate(
    design: Design, rule: Rule, round_s: RoundTime, seeds: Sequence[int], **entry: object
) -> float:
    """Return the share of studies that adopt any ring or, with `entry`, one with those fields."""
    hits = 0
    for seed in seeds:
        entries = decide(study(seed, design, round_s), rule, design.default_ring_cells)
        better = [e for e in entries if e.verdict == "better"]
        hits += any(all(getattr(e, k) == v for k, v in entry.items()) for e in better)
    return hits / len(seeds)


@dataclass(frozen=True, slots=True)
class _Pair:
    tier_cells: int
    passage: str
    split: str
    mode: str
    ring_cells: int
    accepted_ratio: float


def _pair_runs(
    pair: _Pair, design: Design, round_s: RoundTime, rng: np.random.Generator
) -> list[dict[str, object]]:
    """Return the four runs of a pair in ABBA order."""
    suits = {"arm": rng.normal(0, design.passage_sd), "default": 0.0}
    drafts = design.drafts if pair.mode == "on" else 0
    chance = pair.accepted_ratio ** np.arange(1, drafts + 1)
    rounds = round(design.max_new / (1 + float(chance.sum())))
    runs = []
    for position, arm in enumerate(ABBA):
        ring = pair.ring_cells if arm == "arm" else design.default_ring_cells
        noise = suits[arm] + rng.normal(0, design.run_sd)
        seconds = round_s(pair.tier_cells, pair.mode, ring) * np.exp(noise)
        pair_id = f"{pair.passage}-{pair.mode}-{pair.ring_cells}"
        run = {
            "trial_id": f"{pair_id}-{position}",
            "pair_id": pair_id,
            "position": position,
            "arm": arm,
            "ring_cells": ring,
            "rounds": rounds,
            "rounds_per_s": 1 / seconds,
            "tokens_per_round": design.max_new / rounds,
            "tok_s": design.max_new / rounds / seconds,
            "accepted": [round(rounds * float(one)) for one in chance],
            "drafted": [rounds] * drafts,
            "spec": drafts,
        }
        runs.append(_fixed_fields(pair, design, ring) | run)
    return runs


def _fixed_fields(pair: _Pair, design: Design, ring_cells: int) -> dict[str, object]:
    """Return the fields that no noise touches; K/V is read densely, the rest in place."""
    context = pair.tier_cells + design.max_new + 16
    pool = min(ring_cells, context)
    budget = design.budget_bytes
    slots = None if budget is None else max(0, budget - pool * CELL_BYTES) // EXPERT_BYTES
    return {
        "study": "made up",
        "split": pair.split,
        "tier_cells": pair.tier_cells,
        "depth_cells": pair.tier_cells,
        "passage": pair.passage,
        "mode": pair.mode,
        "mtp_window_cells": 512,
        "pool_cells": pool,
        "select": "0",
        "page_cells": 16,
        "victims": "clock",
        "vram_budget_bytes": budget,
        "context_cells": context,
        "max_new": design.max_new,
        "kind": "ok",
        "tokens": design.max_new,
        "token_hash": pair.passage,
        "expert_slots": None if slots is None else min(slots, NUM_EXPERTS),
        "device": "simulated",
        "model_hash": "0" * 64,
        "engine_version": "0",
        "worker": "simulated",
    }
