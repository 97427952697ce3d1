"""Refuse a ring that measured better on average and would still do harm somewhere in its tier."""

from __future__ import annotations

import numpy as np
import pandas as pd

from strata.models.inference import mean_bounds
from strata.policy.tiers import TIER_SLACK_CELLS


def failure_objection(pairs: pd.DataFrame, tier_cells: int, mode: str, ring_cells: int) -> str:
    """Return that the ring's own runs failed, empty where none did."""
    mine = (pairs["tier_cells"] == tier_cells) & (pairs["mode"] == mode)
    here = pairs[mine & (pairs["ring_cells"] == ring_cells)]
    failed = here[here["failed_arm"] == "arm"]
    if failed.empty:
        return ""
    return f"failed in {len(failed)} of {len(here)} pairs ({failed.iloc[0]['kind']})"


def edge_objection(
    means: pd.DataFrame, tier_cells: int, ring_cells: int, *, margin_ratio: float, alpha: float
) -> str:
    """Return why a ring may not serve its whole tier, empty where nothing speaks against it.

    `means` holds the passage means of one mode. Where the ring was measured at several depths of
    the tier, it must be shown not to lose more than the margin at the first and at the last
    (undecided is not harmless). Where it was measured at one, the tier begins where the one
    below ends, so a ring that clearly loses there is refused here. Rings that hold the whole
    context at that border are one ring, whatever they are called.
    """
    loss = float(np.log1p(-margin_ratio))
    inside = means[(means["tier_cells"] == tier_cells) & (means["ring_cells"] == ring_cells)]
    depths = sorted(set(inside["depth_cells"]))
    if len(depths) > 1:
        for depth in (depths[0], depths[-1]):
            sample = inside.loc[inside["depth_cells"] == depth, "log_ratio"].to_numpy(float)
            if mean_bounds(sample, alpha)[0] <= loss:
                return f"not shown harmless at the tier's edge of {int(depth):,} cells"
        return ""
    below = means[means["tier_cells"] < tier_cells]
    if below.empty:
        return ""
    previous = int(below["tier_cells"].max())
    border = previous + TIER_SLACK_CELLS
    same = (below["tier_cells"] == previous) & (
        below["ring_cells"].clip(upper=border) == min(ring_cells, border)
    )
    if mean_bounds(below.loc[same, "log_ratio"].to_numpy(float), alpha)[1] < loss:
        return f"loses in the tier below ({previous:,} cells), where this one begins"
    return ""
