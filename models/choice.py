"""Judge what each method would choose at a depth that it was not shown.

`strata.models.regret` judges rings on other passages of the depths that were measured; here a
whole interior depth is left out, and every method picks the ring whose round it predicts to be
shortest, among those that were measured and so did fit. The rules need no measurement. The best
measured ring is the best of noisy ones, so that all losses come out a little too large, and alike.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from strata.models.baselines import SETTING
from strata.models.bench import bench_of, lost_pct, rule_choices
from strata.models.evaluate import left_out, predictions

COLUMNS = ["policy", *SETTING, "depth_cells", "ring_cells", "lost"]


def left_out_choices(frame: pd.DataFrame, default_ring_cells: int) -> pd.DataFrame:
    """Return what each policy chose at each setting of a left-out depth, and the time lost.

    `lost` is the log of the chosen ring's time over the best measured one's; NaN, as is
    `ring_cells`, where the choice was not measured (it is never replaced by the nearest).
    """
    rows: list[dict[str, object]] = []
    for train, test in left_out(frame, "depth_cells"):
        rings = sorted({int(ring) for ring in test["ring_cells"]})
        asked = _one_per_pool(test)
        asked = asked.assign(**predictions(train, asked, "depth_cells"))
        methods = [name for name in asked if name not in test.columns]
        for _, group in asked.groupby([*SETTING, "depth_cells"], dropna=False, sort=True):
            chosen = {
                name: int(group["ring_cells"].iloc[int(np.argmin(group[name]))]) for name in methods
            }
            rows += _scored(group, chosen, rings, default_ring_cells)
    return pd.DataFrame(rows, columns=COLUMNS)


def summarise_choices(choices: pd.DataFrame) -> pd.DataFrame:
    """Return by policy the mean and the worst loss in percent of the best ring's speed.

    Columns: policy, mean_pct, worst_pct, entries, not_measured.
    """
    rows = []
    for policy, group in choices.groupby("policy", sort=False):
        lost = group["lost"].dropna()
        rows.append(
            {
                "policy": policy,
                "mean_pct": lost_pct(float(lost.mean())) if len(lost) else np.nan,
                "worst_pct": lost_pct(float(lost.max())) if len(lost) else np.nan,
                "entries": len(lost),
                "not_measured": len(group) - len(lost),
            }
        )
    columns = ["policy", "mean_pct", "worst_pct", "entries", "not_measured"]
    return pd.DataFrame(rows, columns=columns)


def _one_per_pool(test: pd.DataFrame) -> pd.DataFrame:
    """Average the rings that reserve the same pool, which are one ring; the smallest names it."""
    keys = [*SETTING, "depth_cells", "pool_cells"]
    logs = test.assign(round_s=np.log(test["round_s"]))
    means = np.exp(logs.groupby(keys, dropna=False)["round_s"].transform("mean"))
    ordered = test.assign(round_s=means).sort_values("ring_cells", kind="stable")
    return ordered.drop_duplicates(keys).reset_index(drop=True)


def _scored(
    group: pd.DataFrame, chosen: dict[str, int], rings: list[int], default_ring_cells: int
) -> list[dict[str, object]]:
    """Return one row for each policy at one setting and depth."""
    times = group.set_index("ring_cells")["round_s"]
    bench = bench_of(group, pd.DataFrame([times.to_dict()]), default_ring_cells)
    rules = rule_choices(bench, bench.rings)  # what ran here is what fits
    choices = chosen | rules | {f"fixed {ring}": ring for ring in rings}
    place = group.iloc[0][[*SETTING, "depth_cells"]].to_dict()
    rows = []
    for policy, ring in choices.items():
        found = bench.measured(ring)
        lost = np.nan if found is None else float(np.log(times[found] / times.min()))
        rows.append({"policy": policy, **place, "ring_cells": found, "lost": lost})
    return rows
