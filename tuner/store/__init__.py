"""Keep trials: the contract, the reference in memory, the database, the files that travel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from strata.errors import StoreError
from strata.tuner.record import TrialRecord
from strata.tuner.store.base import TrialStore
from strata.tuner.store.jsonl import JsonlStore, export_jsonl, read_jsonl
from strata.tuner.store.memory import MemoryStore
from strata.tuner.study import StudyRecord

if TYPE_CHECKING:
    from strata.tuner.store.duck import DuckStore

__all__ = [
    "JsonlStore",
    "MemoryStore",
    "TrialStore",
    "export_jsonl",
    "import_study",
    "open_database",
    "read_study",
    "take_in",
]


def open_database(path: Path, *, must_exist: bool = False, read_only: bool = False) -> DuckStore:
    """Open the trial database at `path`; raise StoreError where it is locked, newer or foreign.

    Where it is only read it must be there, stays as it is, and others may read it at once.
    """
    try:
        from strata.tuner.store.duck import DuckStore
    except ImportError:
        raise StoreError("the trial database needs duckdb: pip install 'strata[tune]'") from None
    return DuckStore(path, must_exist=must_exist, read_only=read_only)


def import_study(store: TrialStore, path: Path) -> tuple[StudyRecord, int, int]:
    """Take a file of JSON lines, or a folder of Parquet, into `store`.

    Returns its study, how many trials were new and how many known; see `read_study`, `take_in`.
    """
    study, trials = read_study(path)
    return study, *take_in(store, study, trials, origin=str(path))


def read_study(path: Path) -> tuple[StudyRecord, list[TrialRecord]]:
    """Return the study and the trials of a file of JSON lines, or of a folder of Parquet.

    Raises StoreError, with the place, where anything in it is not what a sweep writes.
    """
    if path.is_dir():
        from strata.tuner.store.parquet import read_parquet

        return read_parquet(path)
    return read_jsonl(path)


def take_in(
    store: TrialStore, study: StudyRecord, trials: Sequence[TrialRecord], *, origin: str
) -> tuple[int, int]:
    """Add what was read from `origin`; return how many trials were new and how many known.

    A trial that is there already must be the same to the last digit, else StoreError.
    """
    store.add_study(study)
    known = {trial.trial_id: trial for trial in store.every_trial(study.study)}
    for trial in trials:
        if known.get(trial.trial_id, trial) != trial:
            raise StoreError(
                f"{origin}: trial {trial.trial_id} is stored already with other figures"
            )
    new = [trial for trial in trials if trial.trial_id not in known]
    store.add_trials(new)
    return len(new), len(trials) - len(new)
