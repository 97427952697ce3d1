"""Turn what a session is asked for into what a round has to do: cells, pages, experts, rows.

Everything here can be computed before a session exists, so the same features serve fitting and
prediction. What cannot be known from geometry is learned as a falling curve from the engine's
own counters: the share of K/V lookups that miss, by the pool in units of what one row reads, and
the expert misses of a round, by the expert slots that the ring leaves. The physics of the ring
is `min(depth, ring)`: a ring larger than the context changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from sklearn.isotonic import IsotonicRegression

from strata.config import Selection
from strata.models.frame import effective_window_cells
from strata.models.physics import Floats

NAMES = (
    "rounds",
    "drafts",
    "read_cells",
    "further_row_cells",
    "missed_cells",
    "window_cells",
    "missed_experts",
)
"""What a round is paid for, in the order of the columns."""


@dataclass(frozen=True, slots=True)
class FallingCurve:
    """A step-free curve that never rises, constant beyond its ends."""

    at: tuple[float, ...]
    values: tuple[float, ...]

    @classmethod
    def fit(cls, x: Floats, y: Floats) -> FallingCurve:
        """Fit by isotonic regression (Barlow et al., 1972) on the finite points."""
        finite = np.isfinite(x) & np.isfinite(y)
        if not finite.any():
            return cls((0.0,), (0.0,))
        model = IsotonicRegression(increasing=False, out_of_bounds="clip")
        model.fit(x[finite], y[finite])
        return cls(tuple(map(float, model.X_thresholds_)), tuple(map(float, model.y_thresholds_)))

    def __call__(self, x: Floats) -> Floats:
        """Return the curve's values, between its points by straight lines."""
        return np.interp(x, self.at, self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The learned curves behind the features; made by `learn`, then never changed."""

    kv_miss_ratio: FallingCurve | None
    """None where the counters say nothing: then a cell is as likely resident as any other."""
    expert_misses: dict[int, FallingCurve]
    """By the rows of a round: a window of rows asks for more experts than one row does."""

    @classmethod
    def learn(cls, trials: pd.DataFrame) -> Features:
        """Fit the curves to the counters of finished trials."""
        lookups = _numbers(trials, "kv_lookups")
        ratio = None
        if (lookups > 0).any():
            counted = trials[lookups > 0]
            hits = _numbers(counted, "kv_hits") / _numbers(counted, "kv_lookups")
            ratio = FallingCurve.fit(pool_over_read(counted), 1 - hits)
        per_round = _numbers(trials, "expert_misses") / _numbers(trials, "rounds")
        slots, rows = _numbers(trials, "expert_slots"), num_rows(trials)
        curves = {
            int(count): FallingCurve.fit(slots[rows == count], per_round[rows == count])
            for count in np.unique(rows)
        }
        return cls(kv_miss_ratio=ratio, expert_misses=curves)

    def matrix(self, trials: pd.DataFrame) -> Floats:
        """Return the features [n, len(NAMES)] of what `trials` ask for; counters are not read."""
        drafts = num_rows(trials) - 1
        read = read_cells(trials)
        window = effective_window_cells(trials).to_numpy(dtype=float)
        return np.column_stack(
            [
                np.ones(len(trials)),
                drafts,
                read,
                drafts * read,
                read * self._missed_ratio(trials),
                drafts * window,
                self._missed_experts(trials),
            ]
        )

    def _missed_ratio(self, trials: pd.DataFrame) -> Floats:
        if self.kv_miss_ratio is not None:
            return self.kv_miss_ratio(pool_over_read(trials))
        ratio: Floats = 1 - np.minimum(1, pool_cells(trials) / depth_cells(trials))
        return ratio

    def _missed_experts(self, trials: pd.DataFrame) -> Floats:
        """Return the expert misses of a round; no slots recorded means that all are resident."""
        slots, rows = _numbers(trials, "expert_slots"), num_rows(trials)
        missed = np.zeros(len(trials))
        for count, curve in self.expert_misses.items():
            here = (rows == count) & np.isfinite(slots)
            missed[here] = curve(slots[here])
        return missed


def depth_cells(trials: pd.DataFrame) -> Floats:
    """Return the mean depth while decoding: the prompt and half of the answer."""
    return _numbers(trials, "depth_cells") + _numbers(trials, "max_new") / 2


def pool_cells(trials: pd.DataFrame) -> Floats:
    """Return the pool of each session: its ring, or the whole context where that is less."""
    return np.fmin(_numbers(trials, "ring_cells"), _numbers(trials, "context_cells"))


def read_cells(trials: pd.DataFrame) -> Floats:
    """Return the cells that one row reads: its selection, or everything."""
    depth = depth_cells(trials)
    selected = np.array(
        [_selected_cells(str(text), d) for text, d in zip(trials["select"], depth, strict=True)]
    )
    read: Floats = np.minimum(selected, depth)
    return read


def pool_over_read(trials: pd.DataFrame) -> Floats:
    """Return the pool that can be in use over what one row reads (1 and more: a row fits)."""
    ratio: Floats = np.minimum(pool_cells(trials), depth_cells(trials)) / read_cells(trials)
    return ratio


def num_rows(trials: pd.DataFrame) -> Floats:
    """Return the rows of a round's verify window: the last token and the drafts."""
    drafting = (trials["mode"] == "on").to_numpy()
    rows: Floats = 1 + np.where(drafting, np.nan_to_num(_numbers(trials, "spec")), 0.0)
    return rows


def _selected_cells(select: str, depth: float) -> float:
    selection = Selection.parse(select)
    if selection.is_dense:
        return depth
    return selection.cells or depth / selection.depth_divisor


def _numbers(trials: pd.DataFrame, name: str) -> Floats:
    values: Floats = pd.to_numeric(trials[name]).to_numpy(dtype=float, na_value=np.nan)
    return values
