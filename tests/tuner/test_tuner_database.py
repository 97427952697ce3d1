"""What only the database can do: its schema, damage, and files of something else."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from tuner_samples import all_pairs, make_records

from strata.errors import StoreError
from strata.tuner.store.duck import DuckStore
from strata.tuner.store.migrations import MIGRATIONS, expected_columns
from strata.tuner.store.place import connect
from strata.tuner.study import StudyRecord


def test_the_schema_has_every_field(tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    DuckStore(path).close()
    with duckdb.connect(str(path), read_only=True) as db:
        rows = db.execute(
            "SELECT table_name, column_name, data_type, is_nullable FROM duckdb_columns() "
            "WHERE table_name IN ('trials', 'studies') AND NOT internal"
        ).fetchall()
    found: dict[str, dict[str, tuple[str, bool]]] = {}
    for table, column, sql_type, nullable in rows:
        found.setdefault(table, {})[column] = (sql_type, bool(nullable))
    assert found == expected_columns()


def test_older_storage_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    DuckStore(path).close()
    version = int.from_bytes(path.read_bytes()[12:20], "little")
    assert version < 69


def test_a_newer_schema_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    DuckStore(path).close()
    with duckdb.connect(str(path)) as db:
        db.execute("UPDATE store SET version = ?", [len(MIGRATIONS) + 1])
    with pytest.raises(StoreError, match="newer strata"):
        DuckStore(path)
    with duckdb.connect(str(path), read_only=True) as db:
        assert db.execute("SELECT version FROM store").fetchall() == [(len(MIGRATIONS) + 1,)]


@pytest.mark.parametrize("content", [b"not a database at all", b"x" * 8192, b""])
def test_a_foreign_file_is_refused_and_kept(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="not a trial database"):
        DuckStore(path)
    assert path.read_bytes() == content


def test_a_damaged_database_is_one_sentence(study: StudyRecord, tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    DuckStore(path).close()
    path.write_bytes(path.read_bytes()[:6000])
    with pytest.raises(StoreError, match=r"t\.duckdb cannot be"):
        DuckStore(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("UPDATE store SET version = NULL", "schema version is None"),
        ("UPDATE store SET version = -1", "schema version is -1"),
        ("UPDATE studies SET plan = '{}'", "its plan was changed"),
        ("UPDATE trials SET ledger = '{half'", "a ledger is not JSON"),
        ("UPDATE trials SET kind = 'banana'", "kind 'banana' is none of"),
        ("DROP TABLE trials", "not those of a trial database"),
    ],
)
def test_damaged_rows_are_one_sentence(
    damage: str, message: str, study: StudyRecord, tmp_path: Path
) -> None:
    path = tmp_path / "t.duckdb"
    with DuckStore(path) as store:
        store.add_study(study)
        store.add_trials(make_records(all_pairs(study)[0]))
    with duckdb.connect(str(path)) as db:
        db.execute(damage)
    with pytest.raises(StoreError, match=message), DuckStore(path) as store:
        store.trials(store.study("small").study)


def test_a_plan_of_a_newer_version_is_one_sentence(study: StudyRecord) -> None:
    newer = replace(study, plan=study.plan.replace("holm-t", "oracle"))
    with pytest.raises(StoreError, match="plan that this strata cannot read"):
        newer.read_plan()


@pytest.mark.parametrize(
    ("storage", "message"),
    [("v1.2.0", "of something else"), ("latest", "another program or a newer strata")],
)
def test_a_database_of_something_else_is_refused(
    storage: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.duckdb"
    with duckdb.connect() as db:
        db.execute(f"ATTACH '{path}' AS other (STORAGE_VERSION '{storage}')")
        db.execute("CREATE TABLE other.trials (x INTEGER)")
    with pytest.raises(StoreError, match=message):
        DuckStore(path)


def test_a_missing_database_is_not_made_by_reading(tmp_path: Path) -> None:
    for how in ({"must_exist": True}, {"read_only": True}):
        with pytest.raises(StoreError, match="no trial database"):
            DuckStore(tmp_path / "t.duckdb", **how)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", [":memory:", ":memory:x", "md:", "md:x", "sqlite:x", "postgres:x", "s3://a/b", "a:b/c"]
)
def test_what_duckdb_takes_for_no_file_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="no plain file's name"):
        DuckStore(Path(name))
    assert not list(tmp_path.iterdir())


def test_a_file_with_a_colon_opens_by_its_whole_path(study: StudyRecord, tmp_path: Path) -> None:
    path = tmp_path / "md:it's [1]*.duckdb"
    with DuckStore(path) as store:
        store.add_study(study)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    with DuckStore(path, read_only=True) as store:
        assert store.studies() == [study]


def test_no_extension_is_fetched() -> None:
    with connect() as db, pytest.raises(duckdb.Error, match="extension"):
        db.execute("ATTACH 'sqlite:x' AS other")


def test_a_folder_a_pipe_and_a_device_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(StoreError, match=r"is (a folder|no plain file); give --db a file"):
            DuckStore(path)


def test_a_log_without_its_database_is_said_and_kept(tmp_path: Path) -> None:
    log = tmp_path / "t.duckdb.wal"
    log.write_bytes(b"what was stored last")
    for how in ({}, {"read_only": True}):
        with pytest.raises(StoreError, match=r"and t\.duckdb\.wal is there"):
            DuckStore(tmp_path / "t.duckdb", **how)
    assert [one.name for one in tmp_path.iterdir()] == [log.name]


def test_an_end_leaves_no_log(study: StudyRecord, tmp_path: Path) -> None:
    with DuckStore(tmp_path / "t.duckdb") as store:
        store.add_study(study)
        assert (tmp_path / "t.duckdb.wal").stat().st_size
    assert [one.name for one in tmp_path.iterdir()] == ["t.duckdb"]


def test_a_database_that_was_made_for_nothing_goes(study: StudyRecord, tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    with pytest.raises(ZeroDivisionError), DuckStore(path):
        raise ZeroDivisionError
    assert not list(tmp_path.iterdir())
    with DuckStore(path) as store:
        store.add_study(study)
    with pytest.raises(ZeroDivisionError), DuckStore(path):
        raise ZeroDivisionError
    assert path.is_file()


def test_one_that_keeps_a_study_stays(study: StudyRecord, tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        with DuckStore(path) as store:
            store.add_study(study)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail(tmp_path / "t.duckdb")
    with DuckStore(tmp_path / "t.duckdb", read_only=True) as store:
        assert store.studies() == [study]
