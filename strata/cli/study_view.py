"""Lay out what the commands on stored studies print."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table

if TYPE_CHECKING:
    from strata.tuner.replay import Replay

NEAR_RATIO = 0.01
SHARES = (0.25, 0.5)


def replay_table(replays: Sequence[Replay], study: str) -> Table:
    """Return one row for each sampler: how soon it was near, and where it then stood."""
    first = replays[0]
    start, seeds = first.regret_after(0.0)[1], len(first.found)
    grid = Table(
        "sampler", f"arms to {NEAR_RATIO:.0%} regret", "of the grid",
        *(f"regret after {share:.0%}" for share in SHARES), "best found",
        title=f"study {study}, {first.num_arms} arms, {seeds} seeds: median [10 to 90 %]; "
        f"regret before any arm {start:.2%}",
        title_justify="left", box=SIMPLE_HEAD,
    )  # fmt: skip
    for one in replays:
        low, middle, high = one.arms_to_band(NEAR_RATIO)
        grid.add_row(
            one.sampler,
            f"{_arms(middle)} [{_arms(low)} to {_arms(high)}]",
            "-" if math.isinf(middle) else f"{middle / one.num_arms:.0%}",
            *(_regret(one, share) for share in SHARES),
            f"{math.expm1(float(one.found[:, -1].mean())):+.2%} of {math.expm1(one.best):+.2%}",
        )
    return grid


def _arms(count: float) -> str:
    return "never" if math.isinf(count) else f"{count:g}"


def _regret(one: Replay, share: float) -> str:
    low, middle, high = one.regret_after(share)
    return f"{middle:.2%} [{low:.2%} to {high:.2%}]"
