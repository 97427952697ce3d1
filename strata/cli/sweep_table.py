"""Lay out what a running sweep has found so far, a row for each prompt length and drafter mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from strata.units import format_cells

if TYPE_CHECKING:
    from strata.tuner.record import TrialRecord

Place = tuple[int, str]


@dataclass(frozen=True, slots=True)
class _Pair:
    """What became of one pair: its log ratio, None where it failed or was not to decode."""

    place: Place
    ring_cells: int
    is_default: bool
    failed: bool
    gain: float | None


class SoFar:
    """Keeps the last try of every pair and says which ring is ahead."""

    def __init__(self) -> None:
        self._pairs: dict[str, _Pair] = {}

    def add(self, records: Sequence[TrialRecord]) -> None:
        """Take in whole pairs, stored ones or new ones."""
        from strata.tuner.sweep import pair_gain

        by_pair: dict[str, list[TrialRecord]] = {}
        for one in records:
            by_pair.setdefault(one.planned_id, []).append(one)
        for key, runs in by_pair.items():
            sides = {one.arm: one for one in runs}
            arm = sides["arm"]
            self._pairs[key] = _Pair(
                place=(arm.tier_cells, arm.mode),
                ring_cells=arm.ring_cells,
                is_default=arm.ring_cells == sides["default"].ring_cells,
                failed=any(one.kind != "ok" for one in runs),
                gain=pair_gain(runs),
            )

    def table(self) -> Table:
        """Return a row for each (tier, mode) that was begun."""
        grid = Table("tier", "drafter", "pairs", "failed", "ahead", "gain so far", box=SIMPLE_HEAD)
        for place in sorted({one.place for one in self._pairs.values()}):
            mine = [one for one in self._pairs.values() if one.place == place]
            ring, gain = _best(mine)
            grid.add_row(
                format_cells(place[0]),
                place[1],
                str(len(mine)),
                str(sum(one.failed for one in mine)),
                "-" if ring is None else f"ring {ring}",
                Text("-" if gain is None else f"{math.expm1(gain):+.1%}"),
            )
        return grid


def _best(pairs: Sequence[_Pair]) -> tuple[int | None, float | None]:
    """Return the ring with the largest mean gain over the default one, and that gain."""
    gains: dict[int, list[float]] = {}
    for one in pairs:
        if one.gain is not None and not one.is_default:
            gains.setdefault(one.ring_cells, []).append(one.gain)
    means = {ring: math.fsum(found) / len(found) for ring, found in gains.items()}
    best = max(means, key=means.__getitem__, default=None)
    return best, None if best is None else means[best]
