"""Say what a plan asked to be measured: how verdicts are reached follows from it alone.

Whether a ring is chosen on search passages and confirmed on fresh ones, or everything is tested on
all passages, must not hang on what came through: a study that was stopped, or whose rings failed,
would be judged by the easier way of the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pandas as pd

MIN_PASSAGES = 3
"""Passages that a verdict needs, and fresh ones that a plan needs to confirm a choice on."""
LOST_SHARE = 0.25
"""The share of the planned passages that a verdict may lack (where the default ring failed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """How many passages each ring was planned to run on, and how many pairs are there."""

    search: int
    fresh: int
    done_pairs: int = 0
    total_pairs: int = 0

    @property
    def has_two_stages(self) -> bool:
        """Return whether rings are chosen on search passages and confirmed on fresh ones."""
        return self.search > 0 and self.fresh >= MIN_PASSAGES

    @property
    def judging(self) -> int:
        """Return how many passages a ring was planned to be judged on."""
        return self.fresh if self.has_two_stages else self.search + self.fresh

    @property
    def needed(self) -> int:
        """Return how many passages must have come through for a verdict."""
        return max(MIN_PASSAGES, math.ceil(self.judging * (1 - LOST_SHARE)))

    @property
    def is_partial(self) -> bool:
        """Return whether pairs of the plan are still to be measured."""
        return self.done_pairs < self.total_pairs

    @property
    def so_far(self) -> str:
        """Return why nothing is decided yet, empty where all is measured."""
        if not self.is_partial:
            return ""
        return f"undecided so far: {self.done_pairs} of {self.total_pairs} decoding pairs were run"

    def as_if_whole(self) -> Samples:
        """Return the samples of a study that stays as it is; its passages are still wanted."""
        return replace(self, done_pairs=self.total_pairs)


def samples_of(pairs: pd.DataFrame) -> Samples:
    """Return the samples of pairs that come without a plan: what they name, failed or not.

    Every tier of a plan has the same passages, so a tier that names fewer lacks some.
    """
    rings = pairs[pairs["ring_cells"] != pairs["default_ring_cells"]]
    counts = rings.groupby(["split", "tier_cells"])["passage"].nunique().groupby("split").max()
    return Samples(search=int(counts.get("search", 0)), fresh=int(counts.get("fresh", 0)))
