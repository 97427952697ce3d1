"""Predict a round's time without physics: what the cost model has to beat.

Linear interpolation and the nearest neighbour are what a person with the table would do; the
random forest on raw knobs is what simulators of serving systems fit (Vidur, Agrawal et al., MLSys
2024). Each sees configurations (`strata.models.evaluate.configurations`) and their times.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestRegressor

from strata.models.features import num_rows
from strata.models.physics import Floats

SETTING = ["mode", "spec", "select", "vram_budget_bytes"]
"""What a line through depths or pools must have in common."""
NUM_TREES = 100


def same_setting(table: pd.DataFrame, row: pd.Series) -> pd.DataFrame:
    """Return the rows of `table` with the setting of `row`; what neither has is equal."""
    keep = np.ones(len(table), dtype=bool)
    for name in SETTING:
        keep &= (table[name] == row[name]) | (table[name].isna() & pd.isna(row[name]))
    return table[keep]


def by_interpolation(known: pd.DataFrame, test: pd.DataFrame, axis: str) -> Floats:
    """Draw a straight line along `axis` between the two neighbours most alike otherwise."""
    predicted = []
    for _, row in test.iterrows():
        line = same_setting(known, row)
        if axis == "pool_cells":
            line = line[line["depth_cells"] == row["depth_cells"]]
        else:
            gap = np.abs(np.log(line["pool_cells"] / row["pool_cells"]))
            line = line.assign(_gap=gap).sort_values("_gap").drop_duplicates("depth_cells")
        line = line.sort_values(axis)
        predicted.append(np.interp(row[axis], line[axis], line["round_s"]))
    return np.array(predicted)


def by_nearest(known: pd.DataFrame, test: pd.DataFrame, axis: str) -> Floats:
    """Take the time of the configuration nearest in log depth and log pool."""
    del axis
    predicted = []
    for _, row in test.iterrows():
        line = same_setting(known, row)
        gap = sum(np.log(line[name] / row[name]) ** 2 for name in ("depth_cells", "pool_cells"))
        predicted.append(line["round_s"].iloc[int(np.argmin(gap))])
    return np.array(predicted)


def by_forest(known: pd.DataFrame, test: pd.DataFrame, axis: str) -> Floats:
    """Fit a random forest to log time by the knobs as they are given, and ask it."""
    del axis
    selections = sorted({*known["select"], *test["select"]})
    forest = RandomForestRegressor(n_estimators=NUM_TREES, random_state=0)
    forest.fit(_knobs(known, selections), np.log(known["round_s"]))
    times: Floats = np.exp(forest.predict(_knobs(test, selections)))
    return times


def _knobs(table: pd.DataFrame, selections: list[str]) -> Floats:
    """Return depth, ring, rows, window, budget and selection [n, 6]; 0 where there is none."""
    window, budget = (
        pd.to_numeric(table[name]).fillna(0) for name in ("mtp_window_cells", "vram_budget_bytes")
    )
    return np.column_stack(
        [
            table["depth_cells"].to_numpy(dtype=float),
            table["ring_cells"].to_numpy(dtype=float),
            num_rows(table),
            window.to_numpy(dtype=float),
            budget.to_numpy(dtype=float),
            [float(selections.index(one)) for one in table["select"]],
        ]
    )
