"""Write the golden files of this release's schemas; files that are there are never touched.

    python tests/golden/make.py

A golden file only ever comes into being: a release that changes a schema adds files under its new
number, and every older one must open for ever (`test_golden_files.py`).
"""

from __future__ import annotations

import lzma
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from strata.policy.table_file import save_table
from strata.tuner.arms import ORDER, PairSpec, lay_grid
from strata.tuner.conclude import conclude
from strata.tuner.environment import EngineFacts
from strata.tuner.plan import parse_plan
from strata.tuner.record import SCHEMA, TrialRecord, planned
from strata.tuner.store import export_jsonl
from strata.tuner.store.duck import DuckStore
from strata.tuner.store.migrations import VERSION
from strata.tuner.study import StudyRecord, create_study
from strata.tuner.workload import Conditions, PromptCount, Workload

HERE = Path(__file__).parent
INSTANT = "2026-01-02T03:04:05+00:00"
PLAN = """
name = "golden"
[grid]
tiers = [64, 128]
rings = [32, 64]
modes = ["on"]
default_ring = 64
[session]
mtp_window = 64
[passages]
search = [0]
fresh = [1, 2]
[measure]
max_new = 12
[decision]
margin = 0.01
"""
FACTS = EngineFacts(
    device="cpu: golden",
    model_hash="ab" * 32,
    kv_dtype="float32",
    has_mtp=True,
    max_positions=4096,
    default_ring_cells=1024,
    passages_sha256="cd" * 32,
    engine_version="0.1.0+00000000",
    engine_commit="12" * 20,
    worker="golden",
    environment={"python": "3.11", "cpus_usable": 2},
)
WORKLOAD = Workload(
    workload="golden",
    model_hash="ab" * 32,
    engine_version="0.1.0+00000000",
    device="cpu: golden",
    conditions=Conditions(drafts=2, window_cells=64, max_new=12),
    created_at=INSTANT,
    prompts=[
        PromptCount(name="a.txt", depth_cells=64, rounds=8, tokens=12, tries=[8, 3], hits=[3, 1])
    ],
)
GAINS = {64: 1.25, 128: 0.75}
"""What ring 32 makes of the default's speed, by tier."""


def runs(pair: PairSpec) -> list[TrialRecord]:
    """Return the four runs of a pair; the default with itself ran out of time the first time."""
    return [
        TrialRecord(
            **planned(pair, position),
            **(outcome(pair, position) if pair.arm_ring_cells == 32 or pair.retry else TIMEOUT),
            device=FACTS.device,
            model_hash=FACTS.model_hash,
            engine_version=FACTS.engine_version,
            started_at=INSTANT,
            worker=FACTS.worker,
            conditions=CONDITIONS,
        )
        for position in range(len(ORDER))
    ]


CONDITIONS = {"host": "golden", "load_average_1min": 0.5, "clock_limits": ["SwPowerCap"]}
TIMEOUT = {"kind": "timeout", "message": "ended after 600 s", "failed_arm": "default"}


def outcome(pair: PairSpec, position: int) -> dict[str, Any]:
    """Return what a run measured: plain numbers, a little apart from passage to passage."""
    seed = int(pair.passage.partition(":")[2])
    rate = 128.0 + seed
    if ORDER[position] == "arm":
        rate *= GAINS[pair.tier_cells] + seed / 1024 if pair.arm_ring_cells == 32 else 1
    return {
        "kind": "ok",
        "message": "",
        "tokens": 12,
        "token_hash": f"{seed}e" * 32,
        "rounds": 8,
        "decode_s": 8 / rate,
        "rounds_per_s": rate,
        "tok_s": 11 / 8 * rate,
        "tokens_per_round": 11 / 8,
        "accepted": [3],
        "drafted": [8],
        "tpot_p50_ms": 5.5,
        "tpot_p99_ms": 8.25,
        "prefill_s": 0.25,
        "ttft_ms": 260.5,
        "kv_lookups": 400,
        "kv_hits": 300,
        "kv_misses": 100,
        "kv_bytes": 102_400,
        "kv_overflows": 0,
        "expert_lookups": 64,
        "expert_misses": 16,
        "expert_slots": 6,
        "ledger": {"weights": 4096, "ring": pair.pool_cells(position) * 96},
        "repeats": 1,
    }


def write_all(folder: Path) -> None:
    """Write the files that `folder` lacks, named by their schema's number."""
    grid = lay_grid(
        parse_plan(PLAN, origin="golden"), device_default_cells=1024, max_positions=4096
    )
    study = create_study(grid, FACTS, created_at=INSTANT)
    with tempfile.TemporaryDirectory() as scratch:
        database, lines = Path(scratch) / "trials.duckdb", Path(scratch) / "trials.jsonl"
        with DuckStore(database) as store:
            fill(store, study)
            store.add_workload(WORKLOAD)
            export_jsonl(store, study.study, lines)
            table = replace(conclude(store, study), created=INSTANT)
        new(folder / f"store-{VERSION}.duckdb.xz", lzma.compress(database.read_bytes()))
        number = SCHEMA.rpartition("/")[2]
        new(folder / f"trials-{number}.jsonl.xz", lzma.compress(lines.read_bytes()))
        save_table(table, Path(scratch) / "table.json")
        new(folder / "ring-policy-1.json", (Path(scratch) / "table.json").read_bytes())


def fill(store: DuckStore, study: StudyRecord) -> None:
    """Store every pair of the study, one of them tried again, and one of another purpose.

    The plan does not name the last one.
    """
    store.add_study(study)
    for arm in study.grid.arms():
        for pair in study.grid.pairs(arm, study=study.study):
            store.add_try(study.study, pair.pair_id, "begun")
            store.add_trials(runs(pair))
    failed = next(study.grid.pairs(study.grid.arm(64, "on", 64), study=study.study))
    store.add_trials(runs(replace(failed, retry=1)))
    price = replace(pair, purpose="break-even", default_ring_cells=pair.arm_ring_cells)
    store.add_trials(runs(price))


def new(path: Path, content: bytes) -> None:
    """Write a file that is not there yet."""
    if path.exists():
        print(f"kept {path.name}")
        return
    path.write_bytes(content)
    print(f"wrote {path.name}, {len(content):,} bytes")


if __name__ == "__main__":
    write_all(HERE)
