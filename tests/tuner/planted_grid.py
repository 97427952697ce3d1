"""A whole recorded study whose truth is planted: every arm of 5 tiers, up to 7 rings, 2 modes.

A round pays for drafts, depth, missed cells and missed experts; the ring's bytes come out of the
expert slots, so that the best ring lies inside and moves with the tier and the drafter. On top lies
what no model knows: a percent or so for each (tier, mode, pool), for each passage and for each run,
fixed by a hash.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace

import numpy as np
from tuner_samples import FACTS, all_pairs, at_rates, make_records

from strata.tuner.arms import ArmGrid, PairSpec
from strata.tuner.plan import parse_plan
from strata.tuner.record import TrialRecord
from strata.tuner.roster import OF_STUDY
from strata.tuner.store import TrialStore
from strata.tuner.study import StudyRecord, create_study

PLAN = """
name = "planted"
[grid]
tiers = ["1K", "4K", "8K", "16K", "32K"]
rings = ["1K", "2K", "4K", "8K", "12K", "16K", "24K"]
default_ring = "8K"
[session]
mtp_window = "1K"
[passages]
search = [0]
fresh = [1, 2]
[measure]
max_new = 64
[decision]
margin = 0.01
"""
BUDGET_BYTES, CELL_BYTES, EXPERT_BYTES = 160 << 20, 6_144, 196_608
NUM_EXPERTS, LOOKUPS, ROUNDS = 1_024, 10_000, 64
UNMODELLED_SD, PASSAGE_SD, RUN_SD = 0.01, 0.02, 0.003


def planted_study(store: TrialStore, **facts: object) -> StudyRecord:
    """Fill `store` with the whole study, `facts` in place of the engine's."""
    grid = ArmGrid(parse_plan(PLAN, origin="planted"), 8_192)
    changed = replace(FACTS, **facts)  # type: ignore[arg-type]
    study = create_study(grid, changed, created_at="2026-01-02T03:04:05+00:00")
    store.add_study(study)
    same = {name: getattr(study, name) for name in OF_STUDY}
    store.add_trials([replace(run, **same) for pair in all_pairs(study) for run in runs(pair)])
    return study


def runs(pair: PairSpec) -> list[TrialRecord]:
    return [measured(pair, run) for run in make_records(pair)]


def measured(pair: PairSpec, run: TrialRecord) -> TrialRecord:
    """Return a run with its planted figures."""
    depth = pair.depth_cells + pair.max_new // 2
    missed = max(0, depth - run.pool_cells)
    slots = min(NUM_EXPERTS, (BUDGET_BYTES - run.pool_cells * CELL_BYTES) // EXPERT_BYTES)
    missed_experts = (1 + pair.spec) * 40 * math.exp(-slots / 250)
    round_s = 2e-3 + 3e-4 * pair.spec + 1e-7 * depth + 6e-8 * missed + 3e-5 * missed_experts
    noise = UNMODELLED_SD * draw(pair.tier_cells, pair.mode, run.pool_cells)
    noise += PASSAGE_SD * draw(pair.passage) + RUN_SD * draw(run.passage, run.mode, run.trial_id)
    rate = math.exp(noise) / round_s
    hits = round(LOOKUPS * (1 - missed / depth))
    return at_rates(
        run,
        rounds=ROUNDS,
        rounds_per_s=rate,
        kv_lookups=LOOKUPS,
        kv_hits=hits,
        kv_misses=LOOKUPS - hits,
        expert_misses=round(missed_experts * ROUNDS),
        expert_slots=slots,
        mtp_window_cells=1_024 if pair.mode == "on" else None,
    )


def draw(*key: object) -> float:
    """Return a standard normal number that the key alone decides."""
    seed = hashlib.sha256(repr(key).encode()).digest()[:8]
    return float(np.random.default_rng(int.from_bytes(seed, "little")).normal())
