"""Compare two versions of the engine that ran the same plan.

A passage that both ran with the same ring is a pair: the log of rounds/s, the second over the
first. A passage's pairs are averaged over its rings, and the passages of a (tier, mode) are the
sample; the verdict is the one of `strata.models.decide`. The two ran at different times, so that
what the machine did between them is in the difference: run one of them twice to see how much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from strata.errors import UsageError
from strata.models.decide import Candidate, Rule, judge_means
from strata.models.frame import checked

PLACE = ["tier_cells", "mode"]
PAIRED = [*PLACE, "ring_cells", "passage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What the second version made of one (tier, mode); `found` holds log ratios."""

    found: Candidate
    rings: int
    other_tokens: int
    """Passages that came out with other tokens, so that their rounds may have differed."""
    harmless: bool
    """Whether it is shown to lose less than the margin."""
    worst_ring_cells: int
    worst_mean: float
    """The mean log ratio of the ring that fared worst; uncorrected, to look at and not to obey."""


def compare(first: pd.DataFrame, second: pd.DataFrame, rule: Rule) -> list[Change]:
    """Return the change at each (tier, mode) from the trials of `first` to those of `second`.

    Raises UsageError where a frame is not usable or they have no arm and passage in common.
    """
    one, other = _speeds(first).add_suffix("_first"), _speeds(second).add_suffix("_second")
    both = one.join(other, how="inner")
    if both.empty:
        raise UsageError("the two studies have no finished arm and passage in common")
    pairs = both.assign(log_ratio=both["log_speed_second"] - both["log_speed_first"]).reset_index()
    by_passage = pairs.groupby([*PLACE, "passage"], sort=True)
    means = by_passage.agg(log_ratio=("log_ratio", "mean"), num_pairs=("log_ratio", "size"))
    judged = judge_means(means.reset_index().assign(ring_cells=0), rule)
    return [_change(one, pairs, rule) for one in judged]


def _speeds(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the mean log of rounds/s of each arm and passage, and the tokens that came out."""
    trials = checked(frame)
    finished = trials[trials["kind"] == "ok"]
    finished = finished.assign(log_speed=np.log(finished["rounds_per_s"].astype(float)))
    return finished.groupby(PAIRED).agg(
        log_speed=("log_speed", "mean"), tokens=("token_hash", "first")
    )


def _change(found: Candidate, pairs: pd.DataFrame, rule: Rule) -> Change:
    mine = pairs[(pairs["tier_cells"] == found.tier_cells) & (pairs["mode"] == found.mode)]
    by_ring = mine.groupby("ring_cells")["log_ratio"].mean()
    differing = mine.loc[mine["tokens_first"] != mine["tokens_second"], "passage"]
    return Change(
        found=found,
        rings=int(mine["ring_cells"].nunique()),
        other_tokens=int(differing.nunique()),
        harmless=found.floor > float(np.log1p(-rule.margin_ratio)),
        worst_ring_cells=int(by_ring.idxmin()),
        worst_mean=float(by_ring.min()),
    )
