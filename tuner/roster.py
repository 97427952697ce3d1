"""Which trials a study's plan may come to, and what a record says that its plan does not.

A trial's id is a hash of what was asked of it. So a record whose id is none of the plan's, or whose
fields are not those that the id was made of, was not measured for this study, or was changed since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from strata.errors import StoreError
from strata.tuner.arms import ORDER, ArmGrid, PairSpec
from strata.tuner.fields import shown
from strata.tuner.record import PURPOSES, TrialRecord, planned
from strata.tuner.study import StudyRecord

MAX_RETRIES = 256
"""Repeats of one pair that are looked for; each is asked for by hand."""

OF_STUDY = ("device", "model_hash", "engine_version")
"""What every trial shares with its study."""


class Roster:
    """Knows every trial of a study; raises StoreError where the study is not its plan's."""

    def __init__(self, study: StudyRecord) -> None:
        self._study = study
        grid = study.grid
        if grid.sha256() != study.search_space_sha256:
            raise StoreError(
                f"study {study.study} is damaged: its search space or its default ring of "
                f"{study.default_ring_cells} cells is not its plan's"
            )
        self._pairs = {
            pair.pair_id: pair for pair in _of_every_purpose(grid).every_pair(study=study.study)
        }

    def objection(self, record: TrialRecord) -> str:
        """Return why a record is no trial of the study, empty where it is one."""
        pair = self._pair_of(record)
        if pair is None:
            return "belongs to no pair of its study's plan"
        for name, due in planned(pair, record.position).items():
            found = getattr(record, name)
            if found != due and not (name == "mtp_window_cells" and _took(record, due)):
                return f"says {name} {shown(found)}, and its plan {shown(due)}"
        for name in OF_STUDY:
            if getattr(record, name) != getattr(self._study, name):
                return f"says another {name} than its study: {shown(getattr(record, name))}"
        return ""

    def _pair_of(self, record: TrialRecord) -> PairSpec | None:
        """Return the pair that a record says it is of, or the repeat of one that had failed."""
        pair = self._pairs.get(record.planned_id)
        if pair is None or record.retry_of is None:
            return pair
        tries = (replace(pair, retry=number) for number in range(1, MAX_RETRIES + 1))
        return next((one for one in tries if one.pair_id == record.pair_id), None)

    def check(self, records: Sequence[TrialRecord], *, origin: str) -> None:
        """Raise StoreError where a record is no trial of the study, or a pair is not whole."""
        for record in records:
            if words := self.objection(record):
                raise StoreError(f"{origin}: trial {shown(record.trial_id)} {words}")
        check_pairs(records, origin=origin)


def check_pairs(records: Iterable[TrialRecord], *, origin: str) -> None:
    """Raise StoreError where a pair is not whole."""
    pairs: dict[str, list[TrialRecord]] = defaultdict(list)
    for record in records:
        pairs[record.pair_id].append(record)
    for pair, runs in pairs.items():
        if words := pair_objection(runs):
            raise StoreError(f"{origin}: pair {pair} {words}")


def pair_objection(runs: Sequence[TrialRecord]) -> str:
    """Return why some runs are no whole pair of one machine, empty where they are one."""
    positions = sorted(run.position for run in runs)
    if positions != list(range(len(ORDER))):
        return f"holds {len(positions)} of {len(ORDER)} runs"
    workers = {run.worker for run in runs}
    return f"was run by {len(workers)} machines" if len(workers) > 1 else ""


def _took(record: TrialRecord, asked: int | None) -> bool:
    """Return whether a drafter's window is one that a session takes where `asked` was asked for.

    It follows the ring where nothing was, and no window is longer than what it slides over.
    """
    found = record.mtp_window_cells
    if record.mode == "off" or found is None:
        return False
    return not asked or found <= asked


def _of_every_purpose(grid: ArmGrid) -> ArmGrid:
    """Return a grid with the pairs of every purpose: those asked for and not are harmless."""
    measure = grid.plan.measure.model_copy(update={"purposes": PURPOSES})
    changes: dict[str, Any] = {"measure": measure}
    return replace(grid, plan=grid.plan.model_copy(update=changes))
