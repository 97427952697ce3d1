"""Ask the cost model which arm to measure next, in the words of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from strata.config import AUTO_WINDOW
from strata.models.acquire import propose
from strata.models.frame import numeric
from strata.tuner.arms import DECODE, ORDER, Arm, ArmGrid
from strata.tuner.record import COLUMNS, TrialRecord, planned


class ModelProposal:
    """Keeps what a sweep has measured of a grid and names the arm that would tell the most."""

    def __init__(self, grid: ArmGrid, records: Sequence[TrialRecord] = ()) -> None:
        self._arms = grid.arms()
        self._seed = grid.plan.search.seed
        self._asked = pd.DataFrame([_asked(grid, arm) for arm in self._arms])
        self._finished: list[dict[str, object]] = []
        self.add(records)

    def add(self, records: Sequence[TrialRecord]) -> None:
        """Take in the trials of an arm."""
        self._finished += [
            record.to_json()
            for record in records
            if record.kind == "ok" and record.purpose == DECODE
        ]

    def next(self, known: Mapping[Arm, float | None]) -> Arm:
        """Return the arm to measure next; `known` maps the measured ones to their mean gain."""
        gains = [known.get(arm) for arm in self._arms]
        arms = self._asked.assign(gain=pd.Series(gains, dtype=float))
        measured = np.array([arm in known for arm in self._arms])
        trials = numeric(pd.DataFrame(self._finished, columns=list(COLUMNS)))
        trials = trials.sort_values("trial_id", ignore_index=True)  # sums depend on the order
        return self._arms[propose(trials, arms, measured, seed=self._seed)]


def _asked(grid: ArmGrid, arm: Arm) -> dict[str, object]:
    """Return what a session of an arm is asked for; a window of None is the engine's own."""
    pair = next(grid.pairs(arm, study=""))
    position = ORDER.index("arm")
    row = planned(pair, position) | {"default_ring_cells": grid.default_ring_cells}
    if row["mtp_window_cells"] is None:
        row["mtp_window_cells"] = AUTO_WINDOW.reach(
            pool_cells=pair.pool_cells(position), max_context=pair.context_cells
        )
    return row | {"expert_slots": None}
