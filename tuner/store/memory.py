"""The reference store: three dictionaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from strata.errors import StoreError
from strata.tuner.record import TrialRecord
from strata.tuner.store.base import Outcome, TrialStore, check_new, check_try
from strata.tuner.study import StudyRecord


class MemoryStore(TrialStore):
    """Keeps everything in the process and nothing on the disk."""

    def __init__(self) -> None:
        self._studies: dict[str, StudyRecord] = {}
        self._trials: dict[str, TrialRecord] = {}
        self._tries: dict[str, dict[str, Counter[str]]] = {}

    def add_study(self, study: StudyRecord) -> None:
        """Add a study, once."""
        known = self._studies.setdefault(study.study, study)
        if not known.same_identity(study):
            raise StoreError(f"study {study.study} is stored already with other facts")

    def add_trials(self, records: Sequence[TrialRecord]) -> None:
        """Add the runs of a pair, all or none."""
        check_new(records, studies=set(self._studies), known=set(self._trials))
        self._trials.update({record.trial_id: record for record in records})

    def studies(self) -> list[StudyRecord]:
        """Return every study, oldest first."""
        return list(self._studies.values())

    def every_trial(self, study: str) -> list[TrialRecord]:
        """Return the trials of a study by its full key, those that were tried again included."""
        return [record for record in self._trials.values() if record.study == study]

    def trial_ids(self, study: str) -> set[str]:
        """Return the ids of the trials of a study."""
        return {record.trial_id for record in self.every_trial(study)}

    def add_try(self, study: str, pair_id: str, outcome: Outcome) -> None:
        """Note that a try of a pair began, or how it ended without a result."""
        check_try(study, studies=set(self._studies))
        self._tries.setdefault(study, {}).setdefault(pair_id, Counter())[outcome] += 1

    def tries(self, study: str) -> dict[str, Counter[str]]:
        """Return how often each outcome was noted, by pair."""
        return {pair: Counter(noted) for pair, noted in self._tries.get(study, {}).items()}
