"""What the prices leave over at the depths and rings that were measured, and near them.

Each measured place (depth, rows of a round, selection) has a correction of the log time: the mean
of its residuals, and how each of its rings differs from it, both shrunk towards zero. Between its
rings a place is interpolated, beyond them it stays as it is. It knows no expert slots, and a round
never gets slower with a larger pool: the corrected time of the places' rings beside the fewest
expert slots is made to fall with the pool (isotonic regression, Barlow et al., 1972), and between
them a correction is a straight line over the log of the priced time there. What falls beside the
fewest slots, where what a pool saves is the least part of a round, falls beside any.

A place fades out within half an octave of depth, so that a depth which was not measured gets the
prices alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from strata.models.features import num_rows
from strata.models.physics import Floats

SHRINK_ROWS = 2.0
"""Residuals at which a mean is believed by half."""
REACH_OCTAVES = 0.5
DIGITS = 9
"""Of a log time: rings that are closer are one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The correction of one place, by the log seconds priced beside the fewest slots, rising."""

    depth_cells: float
    rows: int
    select: str
    at: tuple[float, ...]
    logs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Offsets:
    """The corrections of every measured place."""

    places: tuple[Offset, ...] = ()

    @classmethod
    def learn(cls, trials: pd.DataFrame, residuals: Floats, at: Floats) -> Offsets:
        """Take the shrunk means of the log `residuals` [n] of each place and of its rings.

        `at` [n] are the logs of the seconds priced for `trials` beside the fewest expert slots.
        """
        table = pd.DataFrame(
            {
                "depth": trials["depth_cells"].to_numpy(dtype=float),
                "rows": num_rows(trials),
                "select": trials["select"].astype(str).to_numpy(),
                "residual": residuals,
                "at": np.round(at, DIGITS),
            }
        )
        places = []
        for (depth, rows, select), group in table.groupby(["depth", "rows", "select"], sort=True):
            logs = _falling(group)
            places.append(
                Offset(
                    depth_cells=float(depth),
                    rows=int(rows),
                    select=str(select),
                    at=tuple(map(float, logs.index)),
                    logs=tuple(map(float, logs)),
                )
            )
        return cls(tuple(places))

    def log(self, trials: pd.DataFrame, at: Floats) -> Floats:
        """Return the correction of each row [n], zero far from every place; `at` as in `learn`."""
        weights, total = np.zeros(len(trials)), np.zeros(len(trials))
        for place, near in self._near(trials):
            weights += near
            total += near * np.interp(at, place.at, place.logs)
        corrected: Floats = total / np.maximum(weights, 1.0)
        return corrected

    def _near(self, trials: pd.DataFrame) -> Iterator[tuple[Offset, Floats]]:
        """Yield each place with how near it is to each row [n]: one is there, zero too far."""
        depth = trials["depth_cells"].to_numpy(dtype=float)
        rows, select = num_rows(trials), trials["select"].astype(str).to_numpy()
        for place in self.places:
            octaves = np.abs(np.log2(depth / place.depth_cells))
            near = np.maximum(0.0, 1 - octaves / REACH_OCTAVES)
            yield place, near * ((rows == place.rows) & (select == place.select))


def _falling(group: pd.DataFrame) -> pd.Series:
    """Return a place's corrections by `at`, such that the corrected time rises with it."""
    mean = group["residual"].sum() / (len(group) + SHRINK_ROWS)
    rings = group.groupby("at", sort=True)["residual"].agg(["sum", "count"])
    own = (rings["sum"] - rings["count"] * mean) / (rings["count"] + SHRINK_ROWS)
    at = rings.index.to_numpy(dtype=float)
    rising = isotonic_regression(at + mean + own, weights=rings["count"].astype(float)).x
    return pd.Series(rising - at, index=rings.index)
