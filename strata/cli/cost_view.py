"""Lay out what drafting costs and gives, and what prompts take."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from strata.units import format_cells

if TYPE_CHECKING:
    from strata.tuner.acceptance import DepthRates, Price
    from strata.tuner.costs import DraftPrice, Estimate, PromptTime


def prices_table(prices: Sequence[DraftPrice]) -> Table:
    """Return one row for each (tier, ring): a round's price and what the passages gave."""
    grid = Table(
        "tier", "ring", "window", "drafts", "plain round", "drafting round", "break-even accepted",
        "accepted", "speed-up", "",
        title="drafting: accepted drafts a round that pay for it, and those measured "
        "(95 % t interval over passages)",
        title_justify="left", box=SIMPLE_HEAD,
    )  # fmt: skip
    for one in prices:
        window = "none" if one.window_cells is None else str(one.window_cells)
        grid.add_row(
            format_cells(one.tier_cells),
            str(one.ring_cells),
            window,
            str(one.drafts),
            f"{1000 * one.plain_round_s:.3f} ms",
            f"{1000 * one.drafting_round_s:.3f} ms",
            Text(interval(one.break_even)),
            Text("-" if one.accepted is None else interval(one.accepted)),
            Text("-" if one.speed_up is None else interval(one.speed_up)),
            speed_word(one.speed_up),
        )
    return grid


def prompts_table(times: Sequence[PromptTime]) -> Table:
    """Return one row for each (tier, mode, ring): the prompt's speed and its first token."""
    grid = Table(
        "tier", "drafter", "ring", "prompt", "tok/s", "first token", "speed over default",
        "passages",
        title="prompts", title_justify="left", box=SIMPLE_HEAD,
    )  # fmt: skip
    for one in times:
        grid.add_row(
            format_cells(one.tier_cells),
            one.mode,
            str(one.ring_cells),
            f"{one.prefill_s.mean:.3f} s",
            f"{one.tier_cells / one.prefill_s.mean:,.0f}",
            f"{one.ttft_ms.mean:.1f} ms",
            Text(interval(one.over_default, lambda ratio: f"{math.expm1(ratio):+.1%}")),
            str(one.prefill_s.passages),
        )
    return grid


def rates_table(found: Sequence[DepthRates]) -> Table:
    """Return one row for each range of depths: the rate of each draft position, and their sum."""
    places = max(len(one.rates) for one in found)
    grid = Table(
        "prompts up to", "prompts", *(f"draft {place + 1}" for place in range(places)),
        "accepted a round",
        title="acceptance: the share of drafts accepted where those before them were "
        "(95 %, Wilson's interval widened by the spread between prompts)",
        title_justify="left", box=SIMPLE_HEAD,
    )  # fmt: skip
    for one in found:
        rates = [interval(rate, "{:.1%}".format) for rate in one.rates]
        grid.add_row(
            format_cells(one.upper_cells),
            str(one.accepted.passages),
            *(Text(text) for text in [*rates, *["-"] * (places - len(rates))]),
            Text(interval(one.accepted)),
        )
    return grid


def outlook_table(found: Sequence[DepthRates], prices: Sequence[Price]) -> Table:
    """Return what drafting makes of these prompts on each ring that a study has priced."""
    grid = Table(
        "prompts up to", "ring", "break-even accepted", "accepted a round", "speed-up", "",
        "costs from",
        title="what that is worth at the study's costs",
        title_justify="left", box=SIMPLE_HEAD,
    )  # fmt: skip
    for one in found:
        mine = [price for price in prices if price.tier_cells == one.upper_cells]
        if not mine:
            grid.add_row(format_cells(one.upper_cells), "-", "-", interval(one.accepted), "-",
                         "no evidence", "no tier of the study")  # fmt: skip
        for price in mine:
            speed_up = one.accepted.map(partial(_speed_up, 1 + price.break_even))
            grid.add_row(
                format_cells(one.upper_cells),
                str(price.ring_cells),
                f"{price.break_even:.2f}",
                Text(interval(one.accepted)),
                Text(interval(speed_up)),
                speed_word(speed_up),
                price.source,
            )
    return grid


def interval(one: Estimate, form: Callable[[float], str] = "{:.2f}".format) -> str:
    """Return an estimate with its interval, the mean alone where one passage is all."""
    text = form(one.mean)
    if math.isfinite(one.lower) and math.isfinite(one.upper):
        text += f" [{form(one.lower)}, {form(one.upper)}]"
    return text


def _speed_up(cost: float, accepted: float) -> float:
    return (1 + accepted) / cost


def speed_word(speed_up: Estimate | None) -> str:
    """Return whether drafting is surely faster, surely slower, or neither is sure."""
    if speed_up is None:
        return ""
    if speed_up.lower > 1:
        return "faster"
    return "slower" if speed_up.upper < 1 else "undecided"
