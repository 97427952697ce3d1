"""Confirm only what was chosen: which pairs a study comes to, as far as that is known yet.

A ring is judged on fresh passages alone, and only the one that did best on the search passages of
its (tier, mode) is judged at all. A plan may leave the fresh pairs of the others out
(``passages.confirm = "chosen"``): the verdict is the same, from fewer pairs. Which ring is chosen
is computed from what is stored, as the verdict does it, so going on later comes to the same pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from strata.models.decide import chosen_rings
from strata.tuner.arms import DECODE, Arm, PairSpec
from strata.tuner.plan import Mode
from strata.tuner.record import COLUMNS, TrialRecord
from strata.tuner.study import StudyRecord

Place = tuple[int, Mode]


class Confirmation:
    """Keeps, for each (tier, mode), the pairs that confirm its chosen ring."""

    def __init__(self, study: StudyRecord) -> None:
        self._study = study
        self._grid = study.grid
        self._arms: dict[Place, list[Arm]] = defaultdict(list)
        for arm in self._grid.arms():
            if self._pairs(arm):
                self._arms[arm.tier_cells, arm.mode].append(arm)
        self._known: dict[Place, tuple[PairSpec, ...]] = {}

    def open_places(self) -> list[Place]:
        """Return the (tier, mode)s whose ring is not chosen yet."""
        return [place for place in self._arms if place not in self._known]

    def arms_of(self, place: Place) -> list[Arm]:
        """Return the arms that are chosen from at a (tier, mode)."""
        return self._arms[place]

    def choose(self, place: Place, records: Sequence[TrialRecord]) -> tuple[PairSpec, ...]:
        """Return the pairs that confirm the best ring of a (tier, mode), all of whose arms ran.

        There is none where no ring ran on a search passage without failing.
        """
        planned = {
            pair.pair_id
            for arm in self._arms[place]
            for pair in self._grid.pairs(arm, study=self._study.study)
        }
        rows = [
            asdict(run) for run in records if run.purpose == DECODE and run.planned_id in planned
        ]
        rings = chosen_rings(pd.DataFrame(rows, columns=list(COLUMNS))) if rows else {}
        ring = rings.get(place)
        arm = next((one for one in self._arms[place] if one.ring_cells == ring), None)
        self._known[place] = () if arm is None else self._pairs(arm)
        return self._known[place]

    def expected(self) -> list[PairSpec]:
        """Return the pairs that confirm, with those of any ring where none is chosen yet."""
        found: list[PairSpec] = []
        for place, arms in self._arms.items():
            found += self._known.get(place, self._pairs(arms[0]))
        return found

    def _pairs(self, arm: Arm) -> tuple[PairSpec, ...]:
        return tuple(self._grid.confirming(arm, study=self._study.study))
