"""Files that the first release of each schema wrote open for ever, with the same content.

`make.py` wrote them. They are never written again: where a test here fails, the reader is wrong.
"""

from __future__ import annotations

import json
import lzma
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from strata.policy.schema import check_schema
from strata.policy.table_document import to_document
from strata.policy.table_file import load_table, read_document
from strata.tuner.conclude import conclude
from strata.tuner.record import COLUMNS
from strata.tuner.report import summarise
from strata.tuner.store import MemoryStore, export_jsonl, import_study
from strata.tuner.store.duck import DuckStore
from strata.tuner.sweep import count_pairs

HERE = Path(__file__).parent
STUDY = "612682ae9a5976f0"
TABLE = HERE / "ring-policy-1.json"


def unpacked(name: str, folder: Path) -> Path:
    """Return a copy, unpacked: opening a database may migrate it."""
    path = folder / name.removesuffix(".xz")
    path.write_bytes(lzma.decompress((HERE / name).read_bytes()))
    return path


@pytest.fixture
def store(tmp_path: Path) -> DuckStore:
    return DuckStore(unpacked("store-1.duckdb.xz", tmp_path), must_exist=True)


def test_the_database_opens_and_holds_what_was_written(store: DuckStore) -> None:
    with store:
        (study,) = store.studies()
        assert (study.study, study.name, study.device) == (STUDY, "golden", "cpu: golden")
        assert study.environment == {"python": "3.11", "cpus_usable": 2}
        assert study.read_plan().grid.tiers == (64, 128)
        trials = store.trials(STUDY)
        assert count_pairs(study, store) == (8, 8)  # its ids are still those of its plan
    assert len(trials) == 32
    assert [trial.kind for trial in trials].count("timeout") == 8
    first = next(t for t in trials if (t.kind, t.arm, t.passage) == ("ok", "arm", "64:1"))
    assert first.rounds_per_s == 129 * (1.25 + 1 / 1024)
    assert first.ledger == {"weights": 4096, "ring": 32 * 96}
    assert (first.accepted, first.expert_slots, first.mtp_window_cells) == ([3], 6, 64)


def test_the_json_lines_hold_the_same_trials(store: DuckStore, tmp_path: Path) -> None:
    lines = unpacked("trials-1.jsonl.xz", tmp_path)
    elsewhere = MemoryStore()
    study, new, known = import_study(elsewhere, lines)
    assert (study.study, new, known) == (STUDY, 32, 0)
    with store:
        assert import_study(store, lines)[1:] == (0, 32)
        assert store.studies() == elsewhere.studies()
        assert store.trials(STUDY) == elsewhere.trials(STUDY)
    export_jsonl(elsewhere, STUDY, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == lines.read_bytes()


def test_the_second_schema_adds_conditions_and_tries(tmp_path: Path, store: DuckStore) -> None:
    with store:
        older = store.trials(STUDY)
        assert store.tries(STUDY) == {}
    newer = DuckStore(unpacked("store-2.duckdb.xz", tmp_path), must_exist=True)
    with newer:
        trials = newer.trials(STUDY)
        assert set(newer.tries(STUDY)) == {one.pair_id for one in trials}
    assert {one.record for one in trials} == {"strata.trial/2"}
    assert trials[0].conditions == {
        "host": "golden", "load_average_1min": 0.5, "clock_limits": ["SwPowerCap"],
    }  # fmt: skip
    changes = {"record": "strata.trial/1", "conditions": None}
    assert [replace(one, **changes) for one in trials] == older


def test_the_third_schema_adds_what_a_pair_was_run_for(tmp_path: Path, store: DuckStore) -> None:
    with store:
        older = store.trials(STUDY)
        assert {one.purpose for one in older} == {"decode"}
    lines = MemoryStore()
    study, *_ = import_study(lines, unpacked("trials-3.jsonl.xz", tmp_path))
    newer = DuckStore(unpacked("store-3.duckdb.xz", tmp_path), must_exist=True)
    with newer:
        trials = newer.trials(study.study)
        assert len(newer.frame(study.study)) == len(older) == 32
    assert lines.trials(study.study) == trials
    assert {one.record for one in trials} == {"strata.trial/3"}
    named = {"record", "trial_id", "pair_id", "study", "conditions"}
    for one, before in zip(trials, older, strict=False):
        assert all(getattr(one, key) == getattr(before, key) for key in COLUMNS if key not in named)
    price = [(one.mode, one.spec, one.ring_cells) for one in trials if one.purpose == "break-even"]
    assert price == [("off", 0, 64), ("on", 1, 64), ("on", 1, 64), ("off", 0, 64)]


def test_the_fourth_schema_keeps_workloads(tmp_path: Path, store: DuckStore) -> None:
    with store:
        assert store.workloads() == []
    newer = DuckStore(unpacked("store-4.duckdb.xz", tmp_path), must_exist=True)
    with newer:
        (kept,) = newer.workloads()
    assert (kept.workload, kept.conditions.drafts, kept.conditions.window_cells) == (
        "golden",
        2,
        64,
    )
    (prompt,) = kept.prompts
    assert (prompt.name, prompt.tries, prompt.hits) == ("a.txt", [8, 3], [3, 1])


def test_the_fifth_schema_adds_whose_failure_it_is(tmp_path: Path, store: DuckStore) -> None:
    with store:
        assert {one.failed_arm for one in store.trials(STUDY)} == {None}
    lines = MemoryStore()
    study, *_ = import_study(lines, unpacked("trials-4.jsonl.xz", tmp_path))
    newer = DuckStore(unpacked("store-5.duckdb.xz", tmp_path), must_exist=True)
    with newer:
        trials = newer.trials(study.study)
    assert lines.trials(study.study) == trials
    assert {one.record for one in trials} == {"strata.trial/4"}
    assert {(one.kind, one.failed_arm) for one in trials} == {("ok", None), ("timeout", "default")}


def test_the_sixth_schema_adds_what_was_tried_again(tmp_path: Path, store: DuckStore) -> None:
    with store:
        assert store.trials(STUDY) == store.every_trial(STUDY)
        assert {one.retry_of for one in store.trials(STUDY)} == {None}
    lines = MemoryStore()
    study, *_ = import_study(lines, unpacked("trials-5.jsonl.xz", tmp_path))
    newer = DuckStore(unpacked("store-6.duckdb.xz", tmp_path), must_exist=True)
    with newer:
        every, last = newer.every_trial(study.study), newer.trials(study.study)
    assert lines.every_trial(study.study) == every
    assert {one.record for one in every} == {"strata.trial/5"}
    gone = [one for one in every if one not in last]
    again = [one for one in last if one.retry_of]
    assert {one.pair_id for one in gone} == {one.retry_of for one in again}
    assert [one.kind for one in gone] == ["timeout"] * 4
    assert [one.kind for one in again] == ["ok"] * 4


def test_the_study_is_still_judged_as_it_was(store: DuckStore) -> None:
    with store:
        study = store.study(STUDY)
        table = conclude(store, study)
        summary = summarise(store, study, table)
    assert table.entries == load_table(TABLE).entries
    assert (summary["total"]["pairs"], summary["kinds"]) == (8, {"ok": 24, "timeout": 8})
    gains = [cell["gain"] and cell["gain"]["mean"] for cell in summary["cells"]]
    assert gains == [pytest.approx(0.250976, abs=1e-6), None, pytest.approx(-0.249024, abs=1e-6),
                     None]  # fmt: skip


def test_the_table_opens_and_says_what_it_said() -> None:
    table = load_table(TABLE)
    assert to_document(table) == json.loads(TABLE.read_text(encoding="utf-8"))
    check_schema(read_document(TABLE))
    found = [(e.tier_cells, e.mode, e.ring_cells, e.verdict) for e in table.entries]
    assert found == [(64, "on", 32, "better"), (128, "on", 64, "worse")]


def test_making_them_again_touches_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in HERE.iterdir() if path.is_file()}
    runpy.run_path(str(HERE / "make.py"))["write_all"](HERE)
    assert capsys.readouterr().out.count("kept ") == 3
    assert {path.name: path.read_bytes() for path in HERE.iterdir() if path.is_file()} == before


def test_the_database_is_in_the_storage_version_that_older_releases_read() -> None:
    head = lzma.decompress((HERE / "store-1.duckdb.xz").read_bytes())[8:20]
    assert head[:4] == b"DUCK"
    assert int.from_bytes(head[4:], "little") < 69
