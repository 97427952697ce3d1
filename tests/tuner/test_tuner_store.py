"""One contract, three stores; then what only the database can do."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from tuner_samples import all_pairs, make_records, other_study

from strata.errors import StoreError
from strata.tuner.record import COLUMNS
from strata.tuner.store import JsonlStore, MemoryStore, TrialStore, export_jsonl, import_study
from strata.tuner.store.duck import DuckStore
from strata.tuner.store.migrations import MIGRATIONS, expected_columns
from strata.tuner.study import StudyRecord

Open = Callable[[], TrialStore]


@pytest.fixture(params=["memory", "duck", "jsonl"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens the store again; the memory store is kept."""
    opened: list[TrialStore] = []

    def again() -> TrialStore:
        if request.param == "memory":
            opened.append(opened[0] if opened else MemoryStore())
        else:
            for store in opened:
                store.close()
            opened.append(
                DuckStore(tmp_path / "t.duckdb")
                if request.param == "duck"
                else JsonlStore(tmp_path / "t.jsonl")
            )
        return opened[-1]

    yield again
    for store in opened:
        store.close()


def test_what_was_added_comes_back_after_reopening(reopen: Open, study: StudyRecord) -> None:
    store = reopen()
    store.add_study(study)
    wanted = [record for pair in all_pairs(study)[:3] for record in make_records(pair)]
    store.add_trials(wanted[:4])
    store.add_trials(wanted[4:])
    store = reopen()
    assert store.studies() == [study]
    assert store.trials(study.study) == wanted
    assert store.trial_ids(study.study) == {record.trial_id for record in wanted}
    frame = store.frame(study.study)
    assert list(frame.columns) == list(COLUMNS)
    assert frame.loc[0, "accepted"] == [3]
    assert frame.loc[0, "ledger"] == wanted[0].ledger


def test_a_failed_run_has_a_kind_and_no_number(reopen: Open, study: StudyRecord) -> None:
    store = reopen()
    store.add_study(study)
    failed = make_records(all_pairs(study)[0], kind="timeout", rounds_per_s=None, ledger=None)
    store.add_trials(failed)
    frame = reopen().frame(study.study)
    assert set(frame["kind"]) == {"timeout"}
    assert frame["rounds_per_s"].isna().all()
    assert frame["ledger"].isna().all()


def test_a_study_is_added_once(reopen: Open, study: StudyRecord) -> None:
    store = reopen()
    store.add_study(study)
    store.add_study(replace(study, created_at="2027-01-01T00:00:00+00:00"))
    assert store.studies() == [study]
    with pytest.raises(StoreError, match="other facts"):
        store.add_study(replace(study, model_hash="99" * 32))


def test_a_trial_is_immutable_and_a_batch_is_all_or_none(reopen: Open, study: StudyRecord) -> None:
    store = reopen()
    store.add_study(study)
    pairs = all_pairs(study)
    store.add_trials(make_records(pairs[0]))
    again = make_records(pairs[1]) + make_records(pairs[0], gain=2.0)
    with pytest.raises(StoreError, match="stored already"):
        store.add_trials(again)
    assert reopen().trials(study.study) == make_records(pairs[0])


def test_tries_are_counted_by_pair_and_outcome(reopen: Open, study: StudyRecord) -> None:
    store = reopen()
    store.add_study(study)
    assert store.tries(study.study) == {}
    for pair, outcome in (("p", "begun"), ("p", "crash"), ("p", "begun"), ("q", "begun")):
        store.add_try(study.study, pair, outcome)  # type: ignore[arg-type]
    store.add_trials(make_records(all_pairs(study)[0]))
    store.add_try(study.study, "q", "lost")
    store = reopen()
    assert store.tries(study.study) == {"p": {"begun": 2, "crash": 1}, "q": {"begun": 1, "lost": 1}}
    assert len(store.trials(study.study)) == 4
    with pytest.raises(StoreError, match="was not added"):
        store.add_try("elsewhere", "p", "begun")


def test_a_trial_of_the_first_schema_stays_one(reopen: Open, study: StudyRecord) -> None:
    store = reopen()
    store.add_study(study)
    old = [replace(one, record="strata.trial/1") for one in make_records(all_pairs(study)[0])]
    assert "conditions" not in old[0].to_json()
    new = make_records(all_pairs(study)[1], conditions={"host": "here", "power_w": 600.5})
    store.add_trials(old)
    store.add_trials(new)
    assert reopen().trials(study.study) == old + new


def test_a_trial_needs_its_study(reopen: Open, study: StudyRecord) -> None:
    with pytest.raises(StoreError, match="was not added"):
        reopen().add_trials(make_records(all_pairs(study)[0]))


def test_a_study_is_found_by_prefix_or_name(reopen: Open, study: StudyRecord) -> None:
    store = reopen()
    store.add_study(study)
    assert store.study(study.study[:5]) == study
    assert store.study("small") == study
    with pytest.raises(StoreError, match=r"no study matches 'large'.*small"):
        store.study("large")


@pytest.mark.parametrize("kind", ["memory", "duck"])
def test_studies_do_not_mix(kind: str, study: StudyRecord, tmp_path: Path) -> None:
    store = MemoryStore() if kind == "memory" else DuckStore(tmp_path / "t.duckdb")
    other = other_study(study)
    for one in (study, other):
        store.add_study(one)
        store.add_trials(make_records(all_pairs(one)[0]))
    assert len(store.trials(study.study)) == len(store.trials(other.study)) == 4
    assert not store.trial_ids(study.study) & store.trial_ids(other.study)
    with pytest.raises(StoreError, match="several studies"):
        store.study("small")
    store.close()


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
    ("storage", "message"), [("v1.2.0", "of something else"), ("latest", "newer DuckDB wrote it")]
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


HOLD = """
import sys, time
from pathlib import Path
from strata.tuner.store.duck import DuckStore
store = DuckStore(Path(sys.argv[1]), read_only=sys.argv[2] == "reads")
print("open", flush=True)
time.sleep(60)
"""

WRITE = """
import json, sys, time
from pathlib import Path
from strata.tuner.record import TrialRecord
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord
store = DuckStore(Path(sys.argv[1]))
study, *pairs = [json.loads(line) for line in open(sys.argv[2])]
store.add_study(StudyRecord.from_json(study))
for pair in pairs:
    store.add_trials([TrialRecord.from_json(record) for record in pair])
    print("committed", flush=True)
time.sleep(60)
"""


@contextmanager
def held(path: Path, how: str) -> Iterator[int]:
    """Have another process read or write the database; yield its id."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), how], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        yield holder.pid
    finally:
        holder.kill()
        holder.communicate()


def test_a_locked_database_is_one_sentence_that_names_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    with held(path, "writes") as holder:
        with pytest.raises(StoreError, match=rf"process {holder} has it open; wait for it or give"):
            DuckStore(path)
        with DuckStore(path, read_only=True) as store:
            assert store.writer == f"process {holder}"
            assert store.studies() == []


def test_who_reads_keeps_writers_out_and_no_reader(study: StudyRecord, tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    with DuckStore(path) as store:
        store.add_study(study)
    with held(path, "reads") as holder:
        with DuckStore(path, read_only=True) as store:
            assert store.study("small") == study
        with pytest.raises(StoreError, match=rf"process {holder} has it open; wait for it or give"):
            DuckStore(path)


def test_committed_rows_survive_sigkill(study: StudyRecord, tmp_path: Path) -> None:
    pairs = all_pairs(study)[:3]
    rows = [study.to_json(), *([r.to_json() for r in make_records(pair)] for pair in pairs)]
    (tmp_path / "rows").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-c", WRITE, str(tmp_path / "t.duckdb"), str(tmp_path / "rows")]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in pairs:
        assert writer.stdout.readline() == "committed\n"
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    with DuckStore(tmp_path / "t.duckdb") as store:
        assert len(store.trials(study.study)) == 12


FULL = """
import json, resource, sys
from pathlib import Path
from strata.errors import StoreError
from strata.tuner.record import TrialRecord
from strata.tuner.store.duck import DuckStore
path = Path(sys.argv[1])
size = path.stat().st_size
store = DuckStore(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
try:
    for line in open(sys.argv[2]):
        store.add_trials([TrialRecord.from_json(record) for record in json.loads(line)])
except StoreError as error:
    print(error)
"""


def test_a_full_disk_loses_nothing_that_was_stored(study: StudyRecord, tmp_path: Path) -> None:
    """In a process of its own, so that the limit binds nothing else."""
    path = tmp_path / "t.duckdb"
    pairs = all_pairs(study)
    with DuckStore(path) as store:
        store.add_study(study)
        store.add_trials(make_records(pairs[0]))
    rows = [[r.to_json() for r in make_records(pair, message="x" * 100_000)] for pair in pairs[1:]]
    (tmp_path / "rows").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path), str(tmp_path / "rows")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "the disk is full" in done.stdout
    assert done.stdout.count("\n") == 1
    with DuckStore(path) as store:
        assert make_records(pairs[0])[0].trial_id in store.trial_ids(study.study)


FULL_FROM_THE_START = """
import resource, sys
from pathlib import Path
from strata.errors import StoreError
from strata.tuner.store import JsonlStore
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord
import json
study = StudyRecord.from_json(json.load(open(sys.argv[2])))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
for kind, name in ((DuckStore, "t.duckdb"), (JsonlStore, "t.jsonl")):
    try:
        with kind(Path(sys.argv[1]) / name) as store:
            store.add_study(study)
    except StoreError as error:
        print(error)
"""


def test_a_store_that_met_a_full_disk_can_be_made_later(study: StudyRecord, tmp_path: Path) -> None:
    (tmp_path / "study").write_text(json.dumps(study.to_json()))
    done = subprocess.run(
        [sys.executable, "-c", FULL_FROM_THE_START, str(tmp_path), str(tmp_path / "study")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    assert "the disk is full" in done.stdout
    assert "t.jsonl cannot be written: File too large" in done.stdout
    for store in (DuckStore(tmp_path / "t.duckdb"), JsonlStore(tmp_path / "t.jsonl")):
        with store:
            store.add_study(study)


def test_jsonl_goes_home_and_twice_is_once(study: StudyRecord, tmp_path: Path) -> None:
    away = MemoryStore()
    away.add_study(study)
    for pair in all_pairs(study)[:2]:
        away.add_trials(make_records(pair))
    assert export_jsonl(away, study.study, tmp_path / "t.jsonl") == 8
    with DuckStore(tmp_path / "t.duckdb") as home:
        assert import_study(home, tmp_path / "t.jsonl") == (study, 8, 0)
        assert import_study(home, tmp_path / "t.jsonl") == (study, 0, 8)
        assert home.trials(study.study) == away.trials(study.study)


def test_jsonl_with_other_figures_is_refused(study: StudyRecord, tmp_path: Path) -> None:
    home = MemoryStore()
    home.add_study(study)
    pair = all_pairs(study)[0]
    home.add_trials(make_records(pair))
    away = MemoryStore()
    away.add_study(study)
    away.add_trials(make_records(pair, gain=1.5))
    export_jsonl(away, study.study, tmp_path / "t.jsonl")
    with pytest.raises(StoreError, match="other figures"):
        import_study(home, tmp_path / "t.jsonl")


@pytest.mark.parametrize("cut", [1, 200, 2500])
def test_a_cut_jsonl_loses_its_last_pair_only(cut: int, study: StudyRecord, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    pairs = all_pairs(study)
    store = JsonlStore(path)
    store.add_study(study)
    for pair in pairs[:3]:
        store.add_trials(make_records(pair))
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    store = JsonlStore(path)
    assert store.trials(study.study) == [r for p in pairs[:2] for r in make_records(p)]
    store.add_trials(make_records(pairs[2]))
    store.close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: expected a JSON object"),
        ('{"record": "strata.trial/9"}', "line 2: expected record"),
        ('{"record": "strata.trial/1", "x": 1}', "line 2: "),
    ],
)
def test_a_damaged_jsonl_names_its_line(
    line: str, message: str, study: StudyRecord, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(study.to_json()) + "\n" + line + "\n")
    with pytest.raises(StoreError, match=message):
        import_study(MemoryStore(), path)
