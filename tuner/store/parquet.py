"""One study as a folder of Parquet files, written and read by DuckDB itself.

`study.parquet` has the study's one row, `trials.parquet` a row for each trial with the columns of
the trial record, `manifest.json` the rows, bytes and SHA-256 of both. The folder appears whole
under its name or not at all.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import duckdb

from strata.errors import StoreError
from strata.tuner.record import COLUMNS, LATER_COLUMNS, TrialRecord
from strata.tuner.roster import Roster
from strata.tuner.store.duck import STUDY_COLUMNS, DuckStore, plain_rows, quoted
from strata.tuner.store.manifest import (
    FOLDER_NAME,
    FileFacts,
    check_manifest,
    check_rows,
    write_manifest,
)
from strata.tuner.store.place import connect
from strata.tuner.study import StudyRecord

STUDY_FILE, TRIALS_FILE = "study.parquet", "trials.parquet"


def export_parquet(store: DuckStore, key: str, folder: Path) -> int:
    """Write the study that `key` names into a new `folder` and count its trials.

    Raises StoreError where the folder holds something already, or cannot be written.
    """
    study = store.study(key).study
    scratch: Path | None = None
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise StoreError(f"{folder} is there already; name a folder that is not")
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        rows = {
            name: store.copy_rows(table, study, scratch / name)
            for name, table in ((STUDY_FILE, "studies"), (TRIALS_FILE, "trials"))
        }
        files = {name: FileFacts.of(scratch / name, rows=count) for name, count in rows.items()}
        write_manifest(scratch / FOLDER_NAME, study=study, files=files)
        for path in scratch.iterdir():
            _flush(path)
        scratch.chmod(0o755)
        scratch.replace(folder)
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}") from None
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
    return rows[TRIALS_FILE]


def read_parquet(folder: Path) -> tuple[StudyRecord, list[TrialRecord]]:
    """Return the study of a folder and its trials, every file and record checked.

    Raises StoreError that names the file and what is wrong with it.
    """
    files = check_manifest(folder / FOLDER_NAME)
    if missing := {STUDY_FILE, TRIALS_FILE} - set(files):
        raise StoreError(f"{folder / FOLDER_NAME} does not name {min(missing)}")
    studies = _rows(folder / STUDY_FILE, STUDY_COLUMNS, files[STUDY_FILE])
    trials = _rows(folder / TRIALS_FILE, tuple(COLUMNS), files[TRIALS_FILE])
    if len(studies) != 1:
        raise StoreError(f"{folder / STUDY_FILE} holds {len(studies)} studies, not one")
    study = StudyRecord.from_json(studies[0], origin=str(folder / STUDY_FILE))
    records = [
        TrialRecord.from_json(row, origin=f"{folder / TRIALS_FILE}, row {number}")
        for number, row in enumerate(trials, start=1)
    ]
    Roster(study).check(records, origin=str(folder / TRIALS_FILE))
    return study, records


def _rows(path: Path, columns: tuple[str, ...], facts: FileFacts) -> list[dict[str, object]]:
    with connect() as database:
        try:
            found = database.execute(f"SELECT * FROM read_parquet({quoted(str(path))})")
            names = tuple(column[0] for column in found.description or ())
            values = found.fetchall()
        except duckdb.Error as error:
            reason = " ".join(str(error).split())[:200]
            raise StoreError(f"{path} cannot be read: {reason}") from None
    lacking = set(columns) - set(names) - set(LATER_COLUMNS)  # an earlier schema has not all
    if wrong := sorted(lacking | (set(names) - set(columns))):
        state = "unknown" if wrong[0] in names else "missing"
        raise StoreError(f"{path}: {state} column {wrong[0]!r}")
    check_rows(path, facts, found=len(values))
    return list(plain_rows(values, names, origin=str(path)))


def _flush(path: Path) -> None:
    """Have the system put a file on the disk before its folder gets its name."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
