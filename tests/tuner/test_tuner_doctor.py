"""The doctor finds what is wrong with a database, and a repair loses nothing."""

from __future__ import annotations

import json
import lzma
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from tuner_samples import FACTS, all_pairs, make_records, other_study
from typer.testing import CliRunner

from strata.cli.tune import app
from strata.errors import StoreError
from strata.tuner.store.doctor import Examination, examine, repair
from strata.tuner.store.duck import DuckStore
from strata.tuner.store.migrations import VERSION
from strata.tuner.study import StudyRecord, create_study

GOLDEN = Path(__file__).parent.parent / "golden"
LOSE_KEYS = (
    "CREATE TABLE copied AS SELECT * FROM {0}; DROP TABLE {0}; ALTER TABLE copied RENAME TO {0}"
)


@pytest.fixture(scope="module")
def sound(study: StudyRecord, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database of two whole studies, for tests to copy and damage."""
    path = tmp_path_factory.mktemp("sound") / "trials.duckdb"
    with DuckStore(path) as store:
        for one in (study, other_study(study)):
            store.add_study(one)
            for pair in all_pairs(one):
                store.add_trials(make_records(pair, model_hash=one.model_hash))
    return path


@pytest.fixture
def database(sound: Path, tmp_path: Path) -> Path:
    return shutil.copyfile(sound, tmp_path / "trials.duckdb")


def change(path: Path, *statements: str) -> None:
    with duckdb.connect(str(path)) as raw:
        for statement in statements:
            raw.execute(statement)


def bad(found: Examination) -> list[str]:
    return [finding.message for finding in found.of("wrong", "lost")]


def hashes(study: StudyRecord) -> str:
    return study.passages_sha256


def test_a_sound_database_has_no_finding_and_is_not_touched(database: Path) -> None:
    before = database.read_bytes()
    found = examine(database, hashes)
    assert (found.version, len(found.studies)) == (VERSION, 2)
    assert [one.message for one in found.findings] == [
        "it was measured by another protocol than this strata's"
    ] * sum(one.message.startswith("it was measured") for one in found.findings)
    assert not bad(found)
    assert repair(database) is None
    assert database.read_bytes() == before


DAMAGES: dict[str, tuple[list[str], str]] = {
    "orphans": (["DELETE FROM studies WHERE model_hash LIKE 'ef%'"], "trials of no study"),
    "one side": (['DELETE FROM trials WHERE ordinal = 2'], "holds 3 of 4 runs"),
    "a figure that cannot be": (
        ["UPDATE trials SET rounds_per_s = -1 WHERE ordinal = 5"], "'rounds_per_s' cannot be"),
    "rates beside their own rounds and seconds": (
        ["UPDATE trials SET rounds_per_s = 10 * rounds_per_s WHERE arm = 'arm'"],
        "rounds_per_s 1000, and its rounds and decode_s make 100"),
    "tok/s beside the rounds": (
        ["UPDATE trials SET tok_s = 10 * tok_s WHERE ordinal = 1"], "tok_s 1000, and its rounds"),
    "an id that is no hash of its row": (
        ["UPDATE trials SET depth_cells = 33 WHERE ordinal = 1"], "says depth_cells 33, and its"),
    "drafts that no session has": (["UPDATE trials SET spec = 99 WHERE ordinal = 1"], "'spec'"),
    "a ring that no machine has": (
        ["UPDATE trials SET ring_cells = 1000000000000, pool_cells = 96 WHERE ordinal = 2"],
        "'ring_cells' cannot be 1000000000000"),
    "no rate in an ok run": (
        ["UPDATE trials SET rounds_per_s = 0 WHERE ordinal = 2"], "'rounds_per_s' cannot be 0"),
    "a rate that is no number": (
        ["UPDATE trials SET rounds_per_s = 'nan' WHERE ordinal = 2"], "'rounds_per_s' cannot be"),
    "a rate past every machine": (
        ["UPDATE trials SET rounds_per_s = 1e308 WHERE ordinal = 2"], "'rounds_per_s' cannot be"),
    "a count below zero": (["UPDATE trials SET kv_hits = -1 WHERE ordinal = 2"], "'kv_hits'"),
    "runs of two machines": (
        ["UPDATE trials SET worker = 'w1' WHERE ordinal = 2"], "was run by 2 machines"),
    "an environment that is a list": (
        ["UPDATE studies SET environment = '[1]' WHERE model_hash LIKE 'ab%'"], "'environment'"),
    "an environment too deep": (
        ["UPDATE studies SET environment = repeat('[', 5000) WHERE model_hash LIKE 'ab%'"],
        "too deep"),
    "a name that is a path": (
        ["UPDATE studies SET name = '../../evil' WHERE model_hash LIKE 'ab%'"], "'name' cannot be"),
    "a kind of its own": (["UPDATE trials SET kind = 'slow' WHERE ordinal = 9"], "kind 'slow'"),
    "a ledger that is no JSON": (
        ["UPDATE trials SET ledger = '{' WHERE ordinal = 3"], "ledger is not JSON"),
    "another plan's trial": (
        ["UPDATE trials SET trial_id = 'x', pair_id = 'y' WHERE ordinal <= 4 AND ordinal > 3",
         "DELETE FROM trials WHERE ordinal < 4"], "belongs to no pair of its study's plan"),
    "another engine's trial": (
        ["UPDATE trials SET engine_version = '9' WHERE ordinal = 4"], "another engine_version"),
    "an edited plan": (
        ["UPDATE studies SET plan = replace(plan, 'small', 'large') WHERE model_hash LIKE 'ab%'"],
        "its plan was changed"),
    "another hash of the passages": (
        ["UPDATE studies SET passages_sha256 = 'x' WHERE model_hash LIKE 'ab%'"],
        "does not match its own facts"),
    "a trial twice": (
        [LOSE_KEYS.format("trials"), "INSERT INTO trials SELECT * FROM trials WHERE ordinal = 3"],
        "is there 2 times"),
    "a trial twice with other figures": (
        [LOSE_KEYS.format("trials"), "INSERT INTO trials SELECT * FROM trials WHERE ordinal = 3",
         "UPDATE trials SET tok_s = 1 WHERE rowid = (SELECT max(rowid) FROM trials)"],
        "and not alike"),
    "a study twice": (
        [LOSE_KEYS.format("studies"), "INSERT INTO studies SELECT * FROM studies LIMIT 1"],
        "is there 2 times"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_found_and_repaired(name: str, database: Path) -> None:
    statements, message = DAMAGES[name]
    rows = "SELECT (SELECT count(*) FROM trials) + (SELECT count(*) FROM studies)"
    change(database, *statements)
    found = examine(database, hashes)
    assert any(message in one for one in bad(found)), bad(found)
    with duckdb.connect(str(database)) as raw:
        before = raw.execute(rows).fetchall()[0][0]
    kept = repair(database)
    assert kept is not None
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    with duckdb.connect(str(database)) as raw:
        after = raw.execute(rows).fetchall()[0][0]
    assert before == after + len(lines)
    assert {line["table"] for line in lines} <= {"trials", "studies"}
    assert not bad(examine(database, hashes))
    with DuckStore(database) as store:
        for study in store.studies():
            assert len(store.trials(study.study)) % 4 == 0


def test_what_is_unfinished_or_failed_is_a_note(study: StudyRecord, tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    with DuckStore(path) as store:
        store.add_study(study)
        store.add_trials(make_records(all_pairs(study)[0], kind="timeout"))
    found = examine(path, lambda study: None)
    notes = " ".join(one.message for one in found.of("note"))
    assert not bad(found)
    total = 4 * len(all_pairs(study))
    assert f"4 of {total} planned trials" in notes
    assert "4 timeout" in notes
    assert "its model is not here" in notes
    assert "its passages differ" in " ".join(
        one.message for one in examine(path, lambda study: "other").of("note")
    )


def test_an_older_schema_is_looked_at_in_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "old.duckdb"
    path.write_bytes(lzma.decompress((GOLDEN / "store-1.duckdb.xz").read_bytes()))
    before = path.read_bytes()
    found = examine(path)
    assert found.version == 1
    assert not bad(found)
    assert (VERSION == 1) or found.findings[0].place == "schema"
    assert path.read_bytes() == before


def test_what_is_no_database_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no trial database"):
        examine(tmp_path / "nothing")
    (tmp_path / "text").write_text("hello, this is text")
    with pytest.raises(StoreError, match="is not a trial database"):
        examine(tmp_path / "text")


def test_damaged_blocks_are_said(database: Path) -> None:
    content = bytearray(database.read_bytes())
    for at in range(12_288, len(content), 1_024):
        content[at] ^= 255
    database.write_bytes(bytes(content))
    with pytest.raises(StoreError, match=r"trials\.duckdb cannot be"):
        examine(database)


Doctor = Callable[..., tuple[int, str, str]]


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch) -> Doctor:
    monkeypatch.setattr("strata.tuner.passages.passages_hash_here", hashes)

    def run(*words: object) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, ["doctor", *map(str, words)])
        return result.exit_code, result.stdout, result.stderr

    return run


def test_the_command_says_what_it_did(database: Path, doctor: Doctor) -> None:
    assert doctor("--db", database)[0] == 0
    change(database, "DELETE FROM trials WHERE ordinal = 2")
    code, output, errors = doctor("--db", database)
    assert code == 2
    assert "3 of 4 runs" in " ".join(output.split())
    assert "1 findings are wrong; --repair" in errors
    code, output, errors = doctor("--db", database, "--repair")
    assert code == 0, errors
    assert "nothing is wrong" in output
    assert "taken out and kept in" in errors
    assert len(list(database.parent.glob("*.removed-*.jsonl"))) == 1


def test_a_repaired_study_goes_on(study: StudyRecord, database: Path) -> None:
    """What was taken out is what a sweep would measure again."""
    change(database, "DELETE FROM trials WHERE ordinal = 2")
    assert repair(database)
    with DuckStore(database) as store:
        ids = store.trial_ids(study.study)
        missing = [p for p in all_pairs(study) if p.trial_id(0) not in ids]
        assert [p.pair_id for p in missing] == [all_pairs(study)[0].pair_id]
        store.add_trials(make_records(missing[0], rounds_per_s=7.0))
    assert not bad(examine(database, hashes))


def test_a_damaged_workload_is_said_and_left(database: Path) -> None:
    change(
        database,
        "INSERT INTO acceptance VALUES (1, 'strata.acceptance/1', 'mine', 'm', '1', 'cpu', '{}', "
        "'a', 1, 1, 1, [1], [1], 'now'), (2, 'x', 'other', 'm', '1', 'cpu', '{}', 'a', 1, 1, 1, "
        "[1], [1], 'now')",
    )
    found = examine(database, hashes)
    assert [(one.state, one.place) for one in found.of("wrong", "lost")] == [("lost", "acceptance")]
    assert repair(database) is None


@pytest.mark.parametrize("lost", [1, 100, 4_096, 262_143, 600_000])
def test_a_database_that_is_short_is_said(lost: int, database: Path) -> None:
    """What it reads may be whole, and yet no sweep can go on in it."""
    database.write_bytes(database.read_bytes()[:-lost])
    with suppress(StoreError):  # where blocks are gone that are read
        assert any("it is damaged" in one for one in bad(examine(database, hashes)))


def test_a_log_beside_the_database_is_a_note(study: StudyRecord, database: Path) -> None:
    """As a SIGKILL leaves it."""
    with DuckStore(database) as store:
        facts = replace(FACTS, device="cpu: third")
        store.add_study(create_study(study.grid, facts, created_at=study.created_at))
        killed = database.with_name("killed.duckdb")
        for end in ("", ".wal"):
            shutil.copyfile(f"{database}{end}", f"{killed}{end}")
    found = examine(killed, hashes)
    assert not bad(found)
    assert len(found.studies) == 3
    notes = [one.message for one in found.of("note") if one.place == "file"]
    assert notes == [
        "killed.duckdb.wal has what was stored last and belongs to it; move or copy both"
    ]
