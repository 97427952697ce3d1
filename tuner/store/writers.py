"""Say of a file of JSON lines that two processes wrote it, and which; a lock keeps them out now."""

from __future__ import annotations

from strata.errors import StoreError
from strata.tuner.record import TrialRecord
from strata.tuner.study import StudyRecord


class Writers:
    """Reads a file's lines in order and refuses the first that a second writer must have added."""

    def __init__(self) -> None:
        self._study: StudyRecord | None = None
        self._trials: dict[str, tuple[int, TrialRecord]] = {}

    def study(self, study: StudyRecord, *, origin: str) -> None:
        """Take in a study line; raise StoreError for a second one."""
        if self._study is not None:
            began = (f"one that began at {one.created_at}" for one in (self._study, study))
            raise StoreError(f"{origin}: a second study line: {_two(*began)}")
        self._study = study

    def trial(self, number: int, trial: TrialRecord, *, origin: str) -> None:
        """Take in a trial of line `number`; raise StoreError for one that stands there already."""
        before, first = self._trials.setdefault(trial.trial_id, (number, trial))
        if before == number:
            return
        words = f"{origin}: trial {trial.trial_id} stands in line {before} already"
        if first == trial:
            raise StoreError(f"{words}, so the line was copied; take one of the two out")
        raise StoreError(f"{words}: {_two(_who(first), _who(trial))}")


def _two(first: str, second: str) -> str:
    return (
        f"two run-trials added to this file at once, {first} and {second}, and none of its pairs "
        "can be told to be undisturbed; measure anew, into a file for each"
    )


def _who(trial: TrialRecord) -> str:
    host = str((trial.conditions or {}).get("host", trial.worker))
    return f"one on {host} that ran it at {trial.started_at}"
