"""Learn from the engine's counters what a round will miss: pages by the pool, experts by slots.

Pages. A row reads the s cells of its selection out of d; the pool holds p of them. What moves from
one round to the next is what the newly accepted tokens select anew, so misses count by accepted
token and not by row: at three drafts as at none, an H200 counted the same pages a token within 4 %
where all rows' pages fit the pool (`experiments/cost-model/`). Stack distances of that turnover
are spread over the octaves between s and d, which gives

    misses a token = scale * (s / page) * (d / s)^growth * (1 - log(p / s) / log(d / s))^fall

It never rises with the pool, never falls with the depth, and is zero where the pool holds
everything. Dense reading needs no curve: each round reads what the pool does not hold, d - p.

Experts. The misses of a round by the expert slots that the ring leaves, a curve that never rises,
for each number of rows: more rows ask for more experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares
from sklearn.isotonic import IsotonicRegression

from strata.models.physics import Floats

START = (1.0, 0.2, 2.0)
LOWEST, HIGHEST = (0.0, 0.0, 0.1), (1e4, 2.0, 10.0)


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
class PageMisses:
    """The pages that selections miss, by the formula above; `scale` counts all layers."""

    scale: float
    growth: float
    fall: float

    @classmethod
    def fit(cls, cells_a_token: Floats, *, pool: Floats, read: Floats, depth: Floats) -> PageMisses:
        """Fit to the missed cells of an accepted token [n], all layers; least squares of roots.

        The root makes the noise of a count alike at all sizes. Arrays are in cells [n].
        """

        def error(values: Floats) -> Floats:
            curve = cls(scale=values[0], growth=values[1], fall=values[2])
            predicted = curve.cells_a_token(pool=pool, read=read, depth=depth)
            gap: Floats = np.sqrt(predicted / unit) - np.sqrt(cells_a_token / unit)
            return gap

        unit = float(np.mean(cells_a_token)) or 1.0
        start = (min(max(unit / float(np.mean(read)), 1e-3), 1e3), *START[1:])
        found = least_squares(error, start, bounds=(LOWEST, HIGHEST))
        scale, growth, fall = map(float, found.x)
        return cls(scale=scale, growth=growth, fall=fall)

    def cells_a_token(self, *, pool: Floats, read: Floats, depth: Floats) -> Floats:
        """Return the cells missed by an accepted token, all layers, for arrays in cells [n]."""
        octaves = np.log(np.maximum(depth / read, 1.0))
        held = np.log(np.clip(pool / read, 1.0, np.maximum(depth / read, 1.0)))
        share = np.divide(held, octaves, out=np.ones_like(octaves), where=octaves > 0)
        cells: Floats = self.scale * read * (depth / read) ** self.growth * (1 - share) ** self.fall
        return cells
