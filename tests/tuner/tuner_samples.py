"""Builders shared by the tuner's tests: a plan, a study, records with chosen figures."""

from __future__ import annotations

import math
from dataclasses import replace

from strata.tuner.arms import ORDER, PairSpec
from strata.tuner.environment import EngineFacts
from strata.tuner.record import TrialRecord, planned
from strata.tuner.study import StudyRecord, create_study

SMALL_PLAN = """
name = "small"
[grid]
tiers = [32, 64]
rings = [32, 64, 128]
default_ring = 64
[session]
mtp_window = 64
[passages]
search = [0]
fresh = [1, 2]
[measure]
max_new = 12
timeout_s = 60.0
[search]
sampler = "random"
"""

FACTS = EngineFacts(
    device="cpu: test",
    model_hash="ab" * 32,
    kv_dtype="float32",
    has_mtp=True,
    max_positions=4096,
    default_ring_cells=1024,
    passages_sha256="cd" * 32,
    engine_version="0.1.0+00000000",
    engine_commit=None,
    worker="w0",
    environment={"python": "3.11"},
)


def other_study(study: StudyRecord) -> StudyRecord:
    """Return the same plan on another model."""
    facts = replace(FACTS, model_hash="ef" * 32)
    return create_study(study.grid, facts, created_at="2026-01-03T03:04:05+00:00")


def all_pairs(study: StudyRecord) -> list[PairSpec]:
    grid = study.grid
    return [pair for arm in grid.arms() for pair in grid.pairs(arm, study=study.study)]


def make_records(pair: PairSpec, *, gain: float = 1.0, **changes: object) -> list[TrialRecord]:
    """Return the four runs of a pair; the arm's rates are `gain` times the default ring's.

    Rates that are changed take the others with them, so that a run does not contradict itself.
    """
    records = []
    for position, arm in enumerate(ORDER):
        rate = 100.0 * (gain if arm == "arm" else 1.0)
        columns = planned(pair, position) | {
            "kind": "ok",
            "message": "",
            "tokens": pair.max_new,
            "token_hash": "aa" * 32,
            "rounds": pair.max_new,
            "decode_s": pair.max_new / rate,
            "rounds_per_s": rate,
            "tok_s": rate,
            "tokens_per_round": 1.0,
            "accepted": [3],
            "drafted": [5],
            "tpot_p50_ms": 10.0,
            "tpot_p99_ms": 12.5,
            "prefill_s": 0.25,
            "ttft_ms": 260.0,
            "kv_lookups": 100,
            "kv_hits": 90,
            "kv_misses": 10,
            "kv_bytes": 10_240,
            "kv_overflows": 0,
            "expert_lookups": 0,
            "expert_misses": 0,
            "expert_slots": None,
            "ledger": {"weights": 1000, "ring": pair.pool_cells(position) * 12},
            "repeats": 1,
            "device": FACTS.device,
            "model_hash": FACTS.model_hash,
            "engine_version": FACTS.engine_version,
            "started_at": "2026-01-02T03:04:06+00:00",
            "worker": FACTS.worker,
        }
        records.append(at_rates(TrialRecord(**columns), **changes))
    return records


def at_rates(record: TrialRecord, **changes: object) -> TrialRecord:
    """Return a run with some fields changed, and those that follow from its rates with them."""
    changed = replace(record, **changes)  # type: ignore[arg-type]
    rate, each, rounds = changed.rounds_per_s, changed.tokens_per_round, changed.rounds
    if not (rate and each and rounds):
        return changed
    due = {
        "tokens": math.ceil(rounds * each),
        "decode_s": rounds * (changed.repeats or 1) / rate,
        "tok_s": rate * each,
    }
    return replace(changed, **{key: due[key] for key in due if key not in changes})  # type: ignore[arg-type]
