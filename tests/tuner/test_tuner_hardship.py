"""What other processes and the disk do to a store: locks, kills, a disk that is full."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tuner_samples import all_pairs, make_records

from strata.errors import StoreError
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord

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
import json, resource, signal, sys
from pathlib import Path
from strata.errors import StoreError
from strata.tuner.store import JsonlStore
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord
study = StudyRecord.from_json(json.load(open(sys.argv[2])))
folder = Path(sys.argv[1])
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
for size in (0, 1, 4_096, 12_288, 20_000, 100_000, 300_000, 800_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    for kind, name in ((DuckStore, f"{size}.duckdb"), (JsonlStore, f"{size}.jsonl")):
        try:
            with kind(folder / name) as store:
                store.add_study(study)
        except StoreError as error:
            print(error)
            assert not list(folder.glob(f"*{name}*")) or kind is JsonlStore, name
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    for kind, name in ((DuckStore, f"{size}.duckdb"), (JsonlStore, f"{size}.jsonl")):
        with kind(folder / name) as store:
            store.add_study(study)
            assert store.studies() == [study]
"""


def test_a_store_that_met_a_full_disk_can_be_made_later(study: StudyRecord, tmp_path: Path) -> None:
    """Wherever the disk is full, what was just made goes again."""
    (tmp_path / "study").write_text(json.dumps(study.to_json()))
    done = subprocess.run(
        [sys.executable, "-c", FULL_FROM_THE_START, str(tmp_path), str(tmp_path / "study")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    assert "0.duckdb cannot be made: the disk is full" in done.stdout
    assert "0.jsonl cannot be written: File too large" in done.stdout
    assert not [one.name for one in tmp_path.iterdir() if one.name.startswith(".")]
