"""Refuse a ring that measured better on average and failed or would do harm somewhere.

A failure is held against the ring of its pair unless it is known that the default ring failed
there by itself: what does not run on some passages is not shown to be worth taking, whatever it
gains on the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import numpy as np
import pandas as pd

from strata.models.frame import SPLITS
from strata.models.inference import mean_bounds
from strata.models.samples import Samples
from strata.policy.tiers import TIER_SLACK_CELLS

PLACE = ["tier_cells", "mode", "passage", "kind"]
NO_FAILURE = ("ok", "incomplete", "wrong output")
"""Kinds that no ring is charged with: what lacks runs says nothing, wrong output voids an entry."""


def charged(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return the failed pairs that are held against their rings.

    Where a record does not know whose failure it is, the default ring beside itself tells: if that
    failed alike on the same passage, the default is at fault.
    """
    failed = pairs[~pairs["kind"].isin(NO_FAILURE)]
    itself = failed["ring_cells"] == failed["default_ring_cells"]
    alike: set[Hashable] = set(failed.loc[itself, PLACE].itertuples(index=False, name=None))
    same = pd.Series(
        [row in alike for row in failed[PLACE].itertuples(index=False, name=None)],
        index=failed.index,
        dtype=bool,
    )
    excused = failed["failed_arm"].isin(["default", "both"]) | (failed["failed_arm"].eq("") & same)
    return failed[~itself & ~excused]


def failure_objection(failed: pd.DataFrame, samples: Samples) -> str:
    """Return on how many passages a ring failed and of what, empty where it did on none.

    `failed` are the pairs that one ring is `charged` with at one (tier, mode).
    """
    if failed.empty:
        return ""
    if not samples.has_two_stages:
        return "failed on " + _passages(failed, samples.judging, "")
    numbers = {"search": samples.search, "fresh": samples.fresh}
    parts = [
        _passages(part, numbers[split], f"{split} ")
        for split in reversed(SPLITS)
        if len(part := failed[failed["split"] == split])
    ]
    return "failed on " + " and ".join(parts)


def _passages(failed: pd.DataFrame, planned: int, split: str) -> str:
    kinds = Counter(failed.drop_duplicates("passage")["kind"])
    listed = ", ".join(
        str(kind) if len(kinds) == 1 else f"{count} {kind}" for kind, count in kinds.most_common()
    )
    return f"{failed['passage'].nunique()} of {planned} {split}passages ({listed})"


def sample_objection(passages: int, samples: Samples) -> str:
    """Return that too few of the planned passages came through, empty where enough did."""
    if passages >= samples.needed:
        return ""
    split = "fresh " if samples.has_two_stages else ""
    return (
        f"{passages} of {samples.judging} {split}passages came through, and a verdict needs "
        f"{samples.needed}"
    )


def output_objection(pairs: pd.DataFrame) -> str:
    """Return on how many passages of one (tier, mode) the output was wrong, with the first case."""
    wrong = pairs[pairs["kind"] == "wrong output"]
    if wrong.empty:
        return ""
    first, count = wrong.iloc[0], wrong["passage"].nunique()
    named = f"wrong output on {count} of {pairs['passage'].nunique()} passages"
    return f"{named} ({first['passage']}: {first['message']})"


def text_objection(pairs: pd.DataFrame, samples: Samples) -> str:
    """Return which passages of one (tier, mode) are one text and would count several times.

    Only pairs that came through count, and what is only chosen on may count twice.
    """
    usable = pairs[(pairs["kind"] == "ok") & (pairs["ring_cells"] != pairs["default_ring_cells"])]
    names = usable[["text", "split", "passage"]].drop_duplicates()
    names = names.sort_values(["split", "passage"], ascending=[False, True], kind="stable")
    for _, group in names.groupby("text", sort=False):
        judging = not samples.has_two_stages or "fresh" in set(group["split"])
        if len(group) > 1 and judging:
            listed = [f"{row.passage} ({row.split})" for row in group.itertuples()]
            return f"passages {', '.join(listed[:-1])} and {listed[-1]} are one text"
    return ""


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
