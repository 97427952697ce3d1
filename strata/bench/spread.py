"""What several repeats of one measurement gave."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MIN_REPEATS = 5
"""Repeats that a printed figure is the median of, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Median, least and most."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of `values`, one at least."""
        return cls(median=statistics.median(values), min=min(values), max=max(values))
