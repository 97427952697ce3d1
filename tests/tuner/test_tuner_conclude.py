"""From trials to a table: it says what was measured, and nothing that was not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from tuner_samples import FACTS, SMALL_PLAN, all_pairs, make_records

from strata.errors import StoreError
from strata.policy.table import PolicyTable
from strata.policy.table_file import load_table, save_table
from strata.tuner.arms import ArmGrid, PairSpec
from strata.tuner.conclude import conclude, fingerprint, usage_line
from strata.tuner.evidence import evidence_of
from strata.tuner.passages import documents_of
from strata.tuner.plan import Plan, parse_plan
from strata.tuner.report import summarise
from strata.tuner.store import MemoryStore, TrialStore
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord, create_study

GAINS = {32: 0.8, 64: 1.0, 128: 1.3}


def planted(pair: PairSpec) -> float:
    """Return the ring's gain at tier 64 with a little noise that depends on the passage."""
    noise = 0.001 * (int(pair.passage.partition(":")[2]) - 1)
    if pair.arm_ring_cells == 64:
        return 1.0
    gain = GAINS[pair.arm_ring_cells] if pair.tier_cells == 64 else 1.0
    return gain * (1 + noise)


def fill(
    store: TrialStore, study: StudyRecord, gain: Callable[[PairSpec], float] = planted
) -> None:
    store.add_study(study)
    for pair in all_pairs(study):
        store.add_trials(make_records(pair, gain=gain(pair)))


def ring_at(table: PolicyTable, tier: int, mode: str) -> tuple[int, str]:
    entry = next(e for e in table.entries if (e.tier_cells, e.mode) == (tier, mode))
    return entry.ring_cells, entry.verdict


def test_a_planted_gain_enters_the_table(study: StudyRecord, tmp_path: Path) -> None:
    store = MemoryStore()
    fill(store, study)
    table = conclude(store, study)
    assert ring_at(table, 64, "off") == (128, "better")
    assert ring_at(table, 64, "on") == (128, "better")
    assert ring_at(table, 32, "off")[0] == 64  # only a smaller, slower ring differs there
    assert table.default_ring_cells == 64
    assert table.fingerprint.device == FACTS.device
    assert table.provenance["study"] == study.study
    seeds = study.read_plan().passages
    assert table.documents == documents_of(seeds.search + seeds.fresh)
    save_table(table, tmp_path / "t.json")
    assert load_table(tmp_path / "t.json") == table


def test_swapping_two_rings_in_the_database_swaps_the_table(
    study: StudyRecord, tmp_path: Path
) -> None:
    """The measurements of rings 32 and 128 at tier 64 change places, nothing else."""
    path = tmp_path / "t.duckdb"
    with DuckStore(path) as store:
        fill(store, study)
        assert ring_at(conclude(store, study), 64, "off") == (128, "better")
    with duckdb.connect() as db:
        db.execute(f"ATTACH '{path}' AS db")
        db.execute(
            "UPDATE db.trials AS one SET rounds_per_s = other.rounds_per_s, "
            "decode_s = other.decode_s, tok_s = other.tok_s FROM (FROM db.trials) AS other "
            "WHERE one.ring_cells IN (32, 128) AND other.ring_cells = 160 - one.ring_cells "
            "AND one.tier_cells = 64 AND other.tier_cells = 64 AND one.passage = other.passage "
            "AND one.mode = other.mode AND one.position = other.position"
        )
    with DuckStore(path) as store:
        table = conclude(store, study)
    assert ring_at(table, 64, "off") == (32, "better")
    assert ring_at(table, 64, "on") == (32, "better")


def test_failed_trials_are_kinds_and_never_zeros(study: StudyRecord) -> None:
    """A ring that never ran is not a slow ring: no figure speaks of it and no entry takes it."""
    store = MemoryStore()
    store.add_study(study)
    for pair in all_pairs(study):
        failed = pair.arm_ring_cells == 128
        changes = {"kind": "out of memory", "rounds_per_s": None, "tok_s": None} if failed else {}
        store.add_trials(make_records(pair, gain=planted(pair), **changes))
    table = conclude(store, study)
    assert all(entry.ring_cells == 64 for entry in table.entries)
    summary = summarise(store, study, table)
    cells = {(c["tier_cells"], c["mode"], c["ring_cells"]): c for c in summary["cells"]}
    lost = cells[64, "off", 128]
    assert (lost["runs"], lost["usable_runs"]) == (6, 0)
    assert lost["gain"] is None
    assert lost["rounds_per_s"] is None
    assert lost["hit_ratio"] is None
    kept = cells[64, "off", 64]
    assert kept["rounds_per_s"]["mean"] == pytest.approx(100.0)  # the failed pairs' share is out
    assert summary["kinds"]["out of memory"] == 24
    assert {one["ring_cells"] for one in summary["failures"]} == {64, 128}
    assert all(entry["measured_best_ring_cells"] != 128 for entry in summary["entries"])


def test_a_drafter_that_changes_the_tokens_is_wrong_output(study: StudyRecord) -> None:
    """Each pair agrees with itself; only plain decoding of the same passage shows the lie."""
    store = MemoryStore()
    store.add_study(study)
    for pair in all_pairs(study):
        lie = pair.mode == "on" and pair.passage == "64:1"
        records = make_records(pair, gain=planted(pair), token_hash=("bb" if lie else "aa") * 32)
        store.add_trials(records)
    frame = evidence_of(store, study)
    wrong = frame[frame["kind"] == "wrong output"]
    assert set(zip(wrong["mode"], wrong["passage"], strict=True)) == {("on", "64:1")}
    assert (store.frame(study.study)["kind"] == "ok").all()
    table = conclude(store, study)
    assert ring_at(table, 64, "on") == (64, "invalid")
    assert ring_at(table, 64, "off") == (128, "better")


def test_a_study_without_trials_has_no_table(study: StudyRecord) -> None:
    store = MemoryStore()
    store.add_study(study)
    with pytest.raises(StoreError, match="holds no trial yet"):
        conclude(store, study)


def test_the_summary_gives_the_gain_that_was_planted(study: StudyRecord) -> None:
    store = MemoryStore()
    fill(store, study)
    summary = summarise(store, study, conclude(store, study))
    for cell in summary["cells"]:
        if cell["is_default"]:
            assert cell["gain"]["mean"] == pytest.approx(0.0, abs=1e-12)
            assert cell["gain"]["pairs"] == 1
        else:
            gain = GAINS[cell["ring_cells"]] if cell["tier_cells"] == 64 else 1.0
            gains = [math.log(gain * (1 + noise)) for noise in (-0.001, 0, 0.001)]
            assert cell["gain"]["mean"] == pytest.approx(math.expm1(math.fsum(gains) / 3))
            assert cell["gain"]["lower"] < cell["gain"]["mean"] < cell["gain"]["upper"]
            assert cell["passages"] == 3
    best = {(e["tier_cells"], e["mode"]): e for e in summary["entries"]}
    assert best[64, "off"]["measured_best_ring_cells"] == 128
    assert best[32, "off"]["measured_best_ring_cells"] == 64


def test_what_auto_was_for_the_engine_that_measured_is_in_the_table(plan: Plan) -> None:
    """A study from before says nothing of it, and measured the ring; junk is no claim either."""
    auto = parse_plan(SMALL_PLAN.replace("mtp_window = 64", ""), origin="small")
    for told, word in (
        ({}, "auto"),
        ({"mtp_window_auto": "min(ring, 512)"}, "min(ring, 512)"),
        ({"mtp_window_auto": "max"}, "auto"),
        ({"mtp_window_auto": 512}, "auto"),
    ):
        facts = replace(FACTS, environment=told)
        study = create_study(ArmGrid(auto, 64), facts, created_at="2026-01-02T03:04:05+00:00")
        assert fingerprint(study).mtp_window == word
        fixed = create_study(ArmGrid(plan, 64), facts, created_at="2026-01-02T03:04:05+00:00")
        assert fingerprint(fixed).mtp_window == 64


def test_the_usage_line_names_what_no_session_takes_from_a_table(study: StudyRecord) -> None:
    line = usage_line(study, "t.json")
    assert line.startswith("strata generate --kv-ring-policy learned --kv-ring-table t.json --pass")
    told = SMALL_PLAN.replace(
        "mtp_window = 64",
        "mtp_window = 64\nselect = '32'\npage = 8\nvram_budget = '2MiB'\ncontext = 256",
    )
    plan = parse_plan(told.replace("[32, 64, 128]", "[64, 128]"), origin="small")
    study = create_study(ArmGrid(plan, 64), FACTS, created_at="2026-01-02T03:04:05+00:00")
    assert (
        "--kv-select 32 --kv-page 8 --vram-budget 2097152 --max-context 256 --passage"
        in usage_line(study, "t.json")
    )


def test_the_usage_line_of_a_sweep_without_the_drafter_turns_it_off() -> None:
    plan = parse_plan(SMALL_PLAN.replace("rings =", "modes = ['off']\nrings ="), origin="small")
    study = create_study(ArmGrid(plan, 64), FACTS, created_at="2026-01-02T03:04:05+00:00")
    line = usage_line(study, "t.json")
    assert "--spec 0 " in line
    assert "--mtp-window" not in line, "no drafter would read it, and no table asks for it"
