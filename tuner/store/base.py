"""The laws of a trial store; `memory` is the reference and one test suite holds all to them.

- A study is added before its first trial. Adding it again is nothing; another study under the
  same key raises StoreError.
- `add_trials` takes all or none, and what it returned from is on the disk. A trial is immutable:
  an id that is there already raises StoreError, and so does an unknown study.
- A try of a pair is noted when it begins and when it ends without a result, so that a pair that
  ends whatever runs it is not run for ever. Notes only grow in number; a study must be there.
- A pair that failed may be measured again: the new trials stand beside the old ones and name the
  planned pair. `trials` has the last try of each pair, `every_trial` has all.
- Reading never changes anything. Trials come back in the order they were added.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, get_args

from strata.errors import StoreError
from strata.tuner.arms import DECODE
from strata.tuner.record import COLUMNS, TrialRecord, last_tries
from strata.tuner.roster import Roster
from strata.tuner.study import StudyRecord

if TYPE_CHECKING:
    import pandas as pd

Outcome = Literal["begun", "crash", "lost", "interrupted"]
"""What is noted of a try: it began; the trial ended, or its worker; the driver was told to stop."""
OUTCOMES: tuple[str, ...] = get_args(Outcome)


class TrialStore(ABC):
    """Keeps studies and their trials."""

    @abstractmethod
    def add_study(self, study: StudyRecord) -> None:
        """Add a study, once."""

    @abstractmethod
    def add_trials(self, records: Sequence[TrialRecord]) -> None:
        """Add the runs of a pair, all or none."""

    @abstractmethod
    def studies(self) -> list[StudyRecord]:
        """Return every study, oldest first."""

    @abstractmethod
    def every_trial(self, study: str) -> list[TrialRecord]:
        """Return the trials of a study by its full key, those that were tried again included."""

    def trials(self, study: str) -> list[TrialRecord]:
        """Return the trials of a study that count: each pair's last try."""
        return last_tries(self.every_trial(study))

    @abstractmethod
    def trial_ids(self, study: str) -> set[str]:
        """Return the ids of the trials of a study."""

    @abstractmethod
    def add_try(self, study: str, pair_id: str, outcome: Outcome) -> None:
        """Note that a try of a pair began, or how it ended without a result."""

    @abstractmethod
    def tries(self, study: str) -> dict[str, Counter[str]]:
        """Return how often each outcome was noted, by pair."""

    def close(self) -> None:  # noqa: B027
        """Let go of the file."""

    def study(self, key: str) -> StudyRecord:
        """Return the one study whose key starts with `key`, or whose name is `key`."""
        every = self.studies()
        found = [one for one in every if one.study.startswith(key) or one.name == key]
        if len(found) == 1:
            return found[0]
        listed = ", ".join(f"{one.study} ({one.name})" for one in found or every) or "none"
        state = "several studies match" if found else "no study matches"
        raise StoreError(f"{state} {key!r}; there are: {listed}")

    def frame(self, study: str, *, purpose: str = DECODE) -> pd.DataFrame:
        """Return a study's trials of one purpose as a frame with the columns of the record.

        Raises StoreError where one is no trial of the study's plan: nothing is concluded from it.
        """
        import pandas as pd

        records = [record for record in self.trials(study) if record.purpose == purpose]
        if records:
            Roster(self.study(study)).check(records, origin=f"study {study}")
        return pd.DataFrame([asdict(record) for record in records], columns=list(COLUMNS))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def check_try(study: str, *, studies: set[str]) -> None:
    """Raise StoreError where a try belongs to no study."""
    if study not in studies:
        raise StoreError(f"a try of study {study!r}, which was not added")


def check_new(records: Sequence[TrialRecord], *, studies: set[str], known: set[str]) -> None:
    """Raise StoreError where records break the laws, before anything is written."""
    seen = set(known)
    for record in records:
        if record.study not in studies:
            raise StoreError(f"trial {record.trial_id}: study {record.study!r} was not added")
        if record.trial_id in seen:
            raise StoreError(f"trial {record.trial_id} is stored already and cannot change")
        record.check(origin=f"study {record.study}, trial {record.trial_id}")
        seen.add(record.trial_id)
