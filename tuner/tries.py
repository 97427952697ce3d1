"""How often a pair is tried, over every sweep of a study, before its failure is the result.

What ends a trial may end it again and again, and may take its worker, or the driver, with it. So
the store notes that a try begins before it does, and how it ended when that is no result.
"""

from __future__ import annotations

from collections import Counter

from strata.tuner.arms import PairSpec
from strata.tuner.store.base import Outcome, TrialStore

MAX_CRASHES = 2
"""Tries of a pair whose own process ends; one accident is forgiven."""

MAX_LOSSES = 3
"""Workers that may be lost under one pair."""

MAX_DRIVER_ENDS = 5
"""Drivers that may end, not told to, while one pair runs."""


class Tries:
    """Counts the tries of a study's pairs and keeps the count in the store."""

    def __init__(self, store: TrialStore, study: str) -> None:
        self._store = store
        self._study = study
        self._noted = store.tries(study)

    def begin(self, pair: PairSpec) -> None:
        """Note that a pair is about to run."""
        self._note(pair, "begun")

    def end(self, pair: PairSpec, outcome: Outcome) -> None:
        """Note that a try ended, and not with a result."""
        self._note(pair, outcome)

    def count(self, pair: PairSpec, outcome: Outcome) -> int:
        """Return how often an outcome was noted."""
        return self._noted.get(pair.pair_id, Counter())[outcome]

    def used_up(self, pair: PairSpec) -> str:
        """Return why a pair is not tried any more, or nothing.

        A try that began and of which nothing more is known ended with its driver.
        """
        crashes, losses = self.count(pair, "crash"), self.count(pair, "lost")
        open_ = self.count(pair, "begun") - crashes - losses - self.count(pair, "interrupted")
        if crashes >= MAX_CRASHES:
            return f"the trial process ended {crashes} times"
        if losses >= MAX_LOSSES:
            return f"its worker was lost {losses} times"
        if open_ >= MAX_DRIVER_ENDS:
            return f"the driver ended {open_} times while it ran"
        return ""

    def _note(self, pair: PairSpec, outcome: Outcome) -> None:
        self._store.add_try(self._study, pair.pair_id, outcome)
        self._noted.setdefault(pair.pair_id, Counter())[outcome] += 1
