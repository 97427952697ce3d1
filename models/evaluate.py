"""Hold the cost model against simpler methods where none of them has seen the answer.

An interior depth (or a ring) is left out whole; the model and the baselines predict its round
times. Random folds would flatter by a factor of three, because each left-out point then has
neighbours at its own depth. Depths at the ends are not left out: that would be extrapolation,
where the model answers "no evidence", which `silence` counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from strata.models.baselines import (
    SETTING,
    by_forest,
    by_interpolation,
    by_nearest,
    same_setting,
)
from strata.models.bench import document_of, named_by_text
from strata.models.conformal import passage_folds
from strata.models.cost_model import RingCostModel
from strata.models.features import pool_cells
from strata.models.frame import checked, levelled
from strata.models.inference import share_bounds, share_p_value
from strata.models.latency import RoundTime
from strata.models.physics import Floats

Axis = Literal["depth_cells", "pool_cells"]
Quantity = Literal["round_s", "tok_s"]
Method = Callable[[pd.DataFrame, pd.DataFrame, str], Floats]
"""(known configurations, asked configurations, axis) -> seconds of a round."""

MODEL = "cost model"
COVERAGE_CONFIDENCE = 0.95
"""Of the interval around a measured coverage."""
BASELINES: dict[str, Method] = {
    "linear interpolation": by_interpolation,
    "nearest neighbour": by_nearest,
    "random forest": by_forest,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How often a left-out passage fell into its interval, one draw a (passage, mode).

    Draws of one document hang together, so that the documents are the sample.
    """

    quantity: Quantity
    confidence: float
    hits: int
    draws: int
    documents: int
    """The draws that are independent of each other."""
    lower: float
    upper: float
    """The bounds of the rate at `COVERAGE_CONFIDENCE`, over documents."""
    p_value: float
    """Of the test over documents that the rate is the promised one; small speaks against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """How often a model answered "no evidence" at depths beyond those that it was fitted to.

    What is asked at one depth gets one model's answer, so that the depths are the sample.
    """

    silent: int
    asked: int
    depths: int
    silent_depths: int
    """Those at which it answered so whatever was asked."""


def predictions(train: pd.DataFrame, asked: pd.DataFrame, axis: str) -> dict[str, Floats]:
    """Return each method's seconds of a round for `asked`, from the finished trials `train`."""
    known = configurations(train)
    found = {MODEL: RoundTime.learn(train).seconds(asked)}
    return found | {name: method(known, asked, axis) for name, method in BASELINES.items()}


def left_out_errors(frame: pd.DataFrame, axis: Axis) -> pd.DataFrame:
    """Return predicted and measured seconds of a round for every left-out configuration.

    Columns: method, SETTING, depth_cells, ring_cells, pool_cells, predicted_s, measured_s, error
    (a ratio). Empty where no value along `axis` is an interior one.
    """
    parts = []
    columns = [*SETTING, "depth_cells", "ring_cells", "pool_cells"]
    for train, test in left_out(frame, axis):
        for name, predicted in predictions(train, test, axis).items():
            part = test[columns].assign(method=name, predicted_s=predicted)
            parts.append(part.assign(measured_s=test["round_s"]))
    if not parts:
        return pd.DataFrame(columns=["method", *columns, "predicted_s", "measured_s", "error"])
    table = pd.concat(parts, ignore_index=True)
    return table.assign(error=table["predicted_s"] / table["measured_s"] - 1)


def left_out(frame: pd.DataFrame, axis: Axis) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """Yield, for each interior value of `axis`, the other trials and its configurations."""
    trials = finished(frame)
    name = axis if axis == "depth_cells" else "ring_cells"
    for value in np.sort(trials[name].unique())[1:-1]:
        out = trials[name] == value
        train = trials[~out]
        test = _inside(configurations(trials[out]), configurations(train), axis)
        if not test.empty:
            yield train, test


def summarise(errors: pd.DataFrame) -> pd.DataFrame:
    """Return, by method, the mean and largest absolute error and Spearman's rank correlation."""
    rows = [
        {
            "method": method,
            "configurations": len(group),
            "mean_abs_error": float(group["error"].abs().mean()),
            "max_abs_error": float(group["error"].abs().max()),
            "rank_correlation": _rank_correlation(group),
        }
        for method, group in errors.groupby("method", sort=False)
    ]
    columns = [
        "method", "configurations", "mean_abs_error", "max_abs_error", "rank_correlation",
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def coverage(
    frame: pd.DataFrame,
    *,
    confidence: float = 0.9,
    seed: int = 0,
    quantities: Sequence[Quantity] = ("round_s", "tok_s"),
) -> tuple[Coverage, ...]:
    """Return how often a passage lies in the intervals of a model that never saw its document.

    Only inside of what that model measured: elsewhere it gives no interval.
    """
    trials, rng = finished(named_by_text(frame)), np.random.default_rng(seed)
    held: dict[str, list[dict[Quantity, bool]]] = defaultdict(list)
    documents = trials["passage"].map(lambda name: document_of(str(name)))
    folds = passage_folds(documents.tolist())
    for fold in np.unique(folds):
        others = trials[folds != fold]
        if others["passage"].nunique() < 2:
            continue
        model = RingCostModel(confidence=confidence).fit(others)
        for (passage, _), mine in trials[folds == fold].groupby(["passage", "mode"], sort=True):
            rows = configurations(mine)
            row = rows.iloc[[int(rng.integers(len(rows)))]]
            found = model.predict_frame(row).iloc[0]
            if not found["no_evidence"]:
                held[document_of(str(passage))].append(
                    {
                        name: bool(
                            found[f"{name}_lower"] <= row[name].iloc[0] <= found[f"{name}_upper"]
                        )
                        for name in quantities
                    }
                )
    return tuple(
        of_draws(name, confidence, [[one[name] for one in draws] for draws in held.values()])
        for name in quantities
    )


def of_draws(quantity: Quantity, confidence: float, held: Sequence[Sequence[bool]]) -> Coverage:
    """Return the coverage by what was held of each document."""
    shares = np.array([np.mean(draws) for draws in held])
    hits, draws = sum(map(sum, held)), sum(map(len, held))
    # Draws that all came out alike show nothing of how far those of a document hang together.
    tries = draws if 0 < hits < draws else len(held)
    lower, upper = share_bounds(shares, tries, (1 - COVERAGE_CONFIDENCE) / 2)
    return Coverage(
        quantity=quantity,
        confidence=confidence,
        hits=hits,
        draws=draws,
        documents=len(held),
        lower=lower,
        upper=upper,
        p_value=share_p_value(shares, tries, confidence),
    )


def silence(frame: pd.DataFrame) -> Silence:
    """Leave out the lowest depth, then the deepest, and count the answers of "no evidence"."""
    trials = finished(frame)
    depths: Sequence[int] = sorted(trials["depth_cells"].unique())
    silences: list[pd.Series] = []
    for depth in {depths[0], depths[-1]} if len(depths) > 1 else ():
        out = trials["depth_cells"] == depth
        found = RingCostModel().fit(trials[~out]).predict_frame(configurations(trials[out]))
        silences.append(found["no_evidence"] != "")
    return Silence(
        silent=sum(int(one.sum()) for one in silences),
        asked=sum(map(len, silences)),
        depths=len(silences),
        silent_depths=sum(bool(one.all()) for one in silences),
    )


def configurations(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each setting, depth and ring, times averaged in logs over passages.

    Not every passage need have run every ring: what the default ring did on a passage, over what
    it did on average at that depth, is taken out of the passage's other rings, as in a pair.
    """
    keys = [*SETTING, "depth_cells", "ring_cells"]
    logs = {"round_s": -np.log(trials["rounds_per_s"]), "tok_s": np.log(trials["tok_s"])}
    budget = pd.to_numeric(trials["vram_budget_bytes"])
    marked = trials.assign(pool_cells=pool_cells(trials), vram_budget_bytes=budget, **logs)
    for name in logs:
        marked[name] -= _passage_effects(marked, name)
    by_passage = marked.groupby([*keys, "passage"], sort=True, dropna=False)
    means = by_passage[["round_s", "tok_s"]].mean().reset_index()
    means = np.exp(means.groupby(keys, sort=True, dropna=False)[["round_s", "tok_s"]].mean())
    first = marked.drop(columns=["round_s", "tok_s"]).drop_duplicates(keys)
    return first.merge(means.reset_index(), on=keys).sort_values(keys, ignore_index=True)


def _passage_effects(marked: pd.DataFrame, name: str) -> Floats:
    """Return what a passage adds to `name` of the default ring; a default's own keeps it."""
    place = [marked[key] for key in (*SETTING, "depth_cells")]
    default = marked[name].where(marked["arm"] == "default")
    runs = default.groupby([*place, marked["passage"]], dropna=False)
    share = 1.0 / runs.transform("count").where(default.notna())  # a passage counts once
    sums = [part.groupby(place, dropna=False).transform("sum") for part in (default * share, share)]
    here, level = runs.transform("mean"), sums[0] / sums[1]
    effects = (here - level).where(marked["arm"] == "arm", 0.0)
    found: Floats = effects.fillna(0.0).to_numpy(dtype=float)
    return found


def finished(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the usable trials of kind ok, levelled; UsageError where the frame is not usable."""
    trials = checked(frame)
    return levelled(trials[trials["kind"] == "ok"]).reset_index(drop=True)


def _inside(test: pd.DataFrame, train: pd.DataFrame, axis: Axis) -> pd.DataFrame:
    """Keep what lies between measured neighbours along `axis`, at its own setting (and depth)."""
    kept = []
    for _, row in test.iterrows():
        line = same_setting(train, row)
        if axis == "pool_cells":
            line = line[line["depth_cells"] == row["depth_cells"]]
        values = line[axis]
        kept.append(bool(len(values)) and values.min() < row[axis] < values.max())
    return test[kept]


def _rank_correlation(group: pd.DataFrame) -> float:
    """Return Spearman's rho; NaN where there is nothing to rank."""
    if len(group) < 2 or group["predicted_s"].nunique() < 2 or group["measured_s"].nunique() < 2:
        return float("nan")
    return float(stats.spearmanr(group["predicted_s"], group["measured_s"]).statistic)
