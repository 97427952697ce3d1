"""Hold the cost model against interpolation where neither has seen the answer.

An interior depth (or a ring) is left out whole; the model, linear interpolation and the nearest
neighbour predict its round times. Random folds would flatter by a factor of three, because each
left-out point then has neighbours at its own depth. Depths at the ends are not left out: that
would be extrapolation, where the model answers "no evidence".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from strata.models.cost_model import RingCostModel
from strata.models.features import pool_cells
from strata.models.frame import checked
from strata.models.latency import RoundTime
from strata.models.physics import Floats

Axis = Literal["depth_cells", "pool_cells"]
Method = Callable[[pd.DataFrame, pd.DataFrame, Axis], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How often a left-out passage fell into its interval, one draw a (passage, mode)."""

    confidence: float
    hits: int
    draws: int
    p_value: float
    """Of the exact binomial test that the rate is the promised one; small speaks against it."""


def left_out_errors(frame: pd.DataFrame, axis: Axis) -> pd.DataFrame:
    """Return predicted and measured seconds of a round for every left-out configuration.

    Columns: method, mode, depth_cells, ring_cells, pool_cells, predicted_s, measured_s, error
    (a ratio). Empty where no value along `axis` is an interior one.
    """
    trials = _finished(frame)
    parts = []
    for value in _interior(trials, axis):
        out = trials[axis if axis == "depth_cells" else "ring_cells"] == value
        train, test = trials[~out], configurations(trials[out])
        test = _inside(test, configurations(train), axis)
        if train.empty or test.empty:
            continue
        columns = ["mode", "depth_cells", "ring_cells", "pool_cells"]
        for name, method in METHODS.items():
            predicted = method(train, test, axis)
            part = test[columns].assign(method=name, predicted_s=predicted)
            parts.append(part.assign(measured_s=test["round_s"]))
    if not parts:
        return pd.DataFrame(columns=["method", "mode", "predicted_s", "measured_s", "error"])
    table = pd.concat(parts, ignore_index=True)
    return table.assign(error=table["predicted_s"] / table["measured_s"] - 1)


def summarise(errors: pd.DataFrame) -> pd.DataFrame:
    """Return, by method, the mean absolute error and the rank correlation with the measured."""
    rows = [
        {
            "method": method,
            "configurations": len(group),
            "mean_abs_error": float(group["error"].abs().mean()),
            "rank_correlation": _rank_correlation(group),
        }
        for method, group in errors.groupby("method", sort=False)
    ]
    columns = ["method", "configurations", "mean_abs_error", "rank_correlation"]
    return pd.DataFrame(rows, columns=columns)


def coverage(frame: pd.DataFrame, *, confidence: float = 0.9, seed: int = 0) -> Coverage:
    """Return how often tok/s of a passage lies in the interval of a model that never saw it."""
    trials, rng = _finished(frame), np.random.default_rng(seed)
    hits = draws = 0
    for _, mine in trials.groupby("passage", sort=True):
        others = trials[trials["passage"] != mine["passage"].iloc[0]]
        if others["passage"].nunique() < 2:
            continue
        model = RingCostModel(confidence=confidence).fit(others)
        for _, rows in configurations(mine).groupby("mode", sort=True):
            row = rows.iloc[[int(rng.integers(len(rows)))]]
            found = model.predict_frame(row).iloc[0]
            if found["no_evidence"]:
                continue
            draws += 1
            hits += bool(found["tok_s_lower"] <= row["tok_s"].iloc[0] <= found["tok_s_upper"])
    p_value = float(stats.binomtest(hits, draws, confidence).pvalue) if draws else 1.0
    return Coverage(confidence=confidence, hits=hits, draws=draws, p_value=p_value)


def configurations(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each (mode, depth, ring), its times averaged in logs over passages."""
    keys = ["mode", "depth_cells", "ring_cells"]
    logs = {"round_s": -np.log(trials["rounds_per_s"]), "tok_s": np.log(trials["tok_s"])}
    marked = trials.assign(pool_cells=pool_cells(trials), **logs)
    by_passage = marked.groupby([*keys, "passage"], sort=True)[["round_s", "tok_s"]].mean()
    means = np.exp(by_passage.groupby(level=keys, sort=True).mean())
    first = marked.drop(columns=["round_s", "tok_s"]).drop_duplicates(keys)
    return first.merge(means.reset_index(), on=keys).sort_values(keys, ignore_index=True)


def _finished(frame: pd.DataFrame) -> pd.DataFrame:
    trials = checked(frame)
    return trials[trials["kind"] == "ok"].reset_index(drop=True)


def _interior(trials: pd.DataFrame, axis: Axis) -> list[int]:
    values = trials["depth_cells" if axis == "depth_cells" else "ring_cells"].unique()
    return [int(value) for value in np.sort(values)[1:-1]]


def _inside(test: pd.DataFrame, train: pd.DataFrame, axis: Axis) -> pd.DataFrame:
    """Keep what lies between measured neighbours along `axis`, at its own mode (and depth)."""
    kept = []
    for row in test.itertuples():
        line = train[train["mode"] == row.mode]
        if axis == "pool_cells":
            line = line[line["depth_cells"] == row.depth_cells]
        values = line[axis]
        kept.append(bool(len(values)) and values.min() < getattr(row, axis) < values.max())
    return test[kept]


def _by_model(train: pd.DataFrame, test: pd.DataFrame, axis: Axis) -> Floats:
    del axis
    return RoundTime.learn(train).seconds(test)


def _by_interpolation(train: pd.DataFrame, test: pd.DataFrame, axis: Axis) -> Floats:
    """Draw a straight line along `axis` between the two neighbours most alike otherwise."""
    known = configurations(train)
    predicted = []
    for row in test.itertuples():
        line = known[known["mode"] == row.mode]
        if axis == "pool_cells":
            line = line[line["depth_cells"] == row.depth_cells]
        else:
            gap = np.abs(np.log(line["pool_cells"] / row.pool_cells))
            line = line.assign(_gap=gap).sort_values("_gap").drop_duplicates("depth_cells")
        line = line.sort_values(axis)
        predicted.append(np.interp(getattr(row, axis), line[axis], line["round_s"]))
    return np.array(predicted)


def _by_nearest(train: pd.DataFrame, test: pd.DataFrame, axis: Axis) -> Floats:
    """Take the time of the configuration nearest in log depth and log pool."""
    del axis
    known = configurations(train)
    predicted = []
    for row in test.itertuples():
        line = known[known["mode"] == row.mode]
        gap = sum(
            np.log(line[name] / getattr(row, name)) ** 2 for name in ("depth_cells", "pool_cells")
        )
        predicted.append(line["round_s"].iloc[int(np.argmin(gap))])
    return np.array(predicted)


METHODS: dict[str, Method] = {
    "cost model": _by_model,
    "linear interpolation": _by_interpolation,
    "nearest neighbour": _by_nearest,
}


def _rank_correlation(group: pd.DataFrame) -> float:
    """Return Spearman's rho; NaN where there is nothing to rank."""
    if len(group) < 2 or group["predicted_s"].nunique() < 2 or group["measured_s"].nunique() < 2:
        return float("nan")
    return float(stats.spearmanr(group["predicted_s"], group["measured_s"]).statistic)
