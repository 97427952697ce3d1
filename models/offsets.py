"""What the prices leave over at the depths that were measured, and near them.

Each measured place (depth, rows of a round, selection) has one correction of the log time, the
mean of its residuals shrunk towards zero. It knows no ring and no expert slots, so that a round
stays monotone in both; it fades out within half an octave of depth, so that a depth which was not
measured gets the prices alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from strata.models.features import num_rows
from strata.models.physics import Floats

SHRINK_ROWS = 2.0
"""Residuals at which a place's mean is believed by half."""
REACH_OCTAVES = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The correction of one place."""

    depth_cells: float
    rows: int
    select: str
    log: float


@dataclass(frozen=True, slots=True)
class Offsets:
    """The corrections of every measured place."""

    places: tuple[Offset, ...] = ()

    @classmethod
    def learn(cls, trials: pd.DataFrame, residuals: Floats) -> Offsets:
        """Take the shrunk mean of the log `residuals` [n] of each place."""
        table = pd.DataFrame(
            {
                "depth": trials["depth_cells"].to_numpy(dtype=float),
                "rows": num_rows(trials),
                "select": trials["select"].astype(str).to_numpy(),
                "residual": residuals,
            }
        )
        found = table.groupby(["depth", "rows", "select"], sort=True)["residual"].agg(
            ["sum", "count"]
        )
        return cls(
            tuple(
                Offset(
                    depth_cells=float(depth),
                    rows=int(rows),
                    select=str(select),
                    log=float(total / (count + SHRINK_ROWS)),
                )
                for (depth, rows, select), total, count in found.itertuples(name=None)
            )
        )

    def log(self, trials: pd.DataFrame) -> Floats:
        """Return the correction of each row [n], zero far from every place."""
        depth = trials["depth_cells"].to_numpy(dtype=float)
        rows, select = num_rows(trials), trials["select"].astype(str).to_numpy()
        weights, total = np.zeros(len(trials)), np.zeros(len(trials))
        for place in self.places:
            octaves = np.abs(np.log2(depth / place.depth_cells))
            near = np.maximum(0.0, 1 - octaves / REACH_OCTAVES)
            near *= (rows == place.rows) & (select == place.select)
            weights += near
            total += near * place.log
        corrected: Floats = total / np.maximum(weights, 1.0)
        return corrected
