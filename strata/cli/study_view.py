"""Lay out what the commands on stored studies print."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from strata.units import format_cells

if TYPE_CHECKING:
    from strata.models.decide import Candidate, Rule
    from strata.tuner.replay import Replay
    from strata.tuner.store.doctor import Examination
    from strata.tuner.verdict import Comparison, StudyVerdict

NEAR_RATIO = 0.01
SHARES = (0.25, 0.5)
UNBOUNDED_LOG = 10.0
"""A bound further out says nothing."""


def replay_table(replays: Sequence[Replay], study: str) -> Table:
    """Return one row for each sampler: how soon it was near, and where it then stood."""
    first = replays[0]
    start, seeds = float(first.regret_ratio[0, 0]), len(first.found)
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


def entries_table(verdict: StudyVerdict) -> Table:
    """Return one row for each (tier, mode): its word, its ring and the candidate it rests on."""
    grid = Table(
        "tier", "drafter", "verdict", "ring", "best candidate", "gain, interval",
        "lower bound alone", "passages",
        title="entries", title_justify="left", box=SIMPLE_HEAD,
    )  # fmt: skip
    for entry in verdict.entries:
        best = entry.best
        grid.add_row(
            format_cells(entry.tier_cells),
            entry.mode,
            verdict.word_at(entry.tier_cells, entry.mode),
            str(entry.ring_cells),
            "-" if best is None else str(best.ring_cells),
            Text("-" if best is None else _gain(best)),
            "-" if best is None else _percent(best.floor),
            "-" if best is None else str(best.passages),
        )
    return grid


def candidates_table(verdict: StudyVerdict) -> Table:
    """Return one row for each ring that was tested, with its p value and its Holm step."""
    grid = Table(
        "tier", "drafter", "ring", "verdict", "gain, interval", "p", "Holm step",
        "passages", "pairs",
        title=f"tested rings ({verdict.note})", title_justify="left", box=SIMPLE_HEAD,
    )  # fmt: skip
    for one in verdict.candidates:
        grid.add_row(
            format_cells(one.tier_cells),
            one.mode,
            str(one.ring_cells),
            one.verdict,
            Text(_gain(one)),
            f"{one.p_value:.2g}",
            f"{one.level:.2g}",
            str(one.passages),
            str(one.pairs),
        )
    return grid


def changes_table(comparison: Comparison) -> Table:
    """Return one row for each (tier, mode): what the second engine made of it."""
    grid = Table(
        "tier", "drafter", "verdict", "change in rounds/s, interval", "p", "Holm step",
        "lower bound alone", "passages", "rings", "worst ring", "other tokens",
        box=SIMPLE_HEAD,
    )  # fmt: skip
    for change in comparison.changes:
        found = change.found
        grid.add_row(
            format_cells(found.tier_cells),
            found.mode,
            found.verdict,
            Text(_gain(found)),
            f"{found.p_value:.2g}",
            f"{found.level:.2g}",
            _percent(found.floor),
            str(found.passages),
            str(change.rings),
            f"{change.worst_ring_cells}: {_percent(change.worst_mean)}",
            f"{change.other_tokens} passages" if change.other_tokens else "-",
        )
    return grid


def findings_table(found: Examination) -> Table:
    """Return one row for each thing that was found in a database."""
    grid = Table("state", "study", "finding", box=SIMPLE_HEAD)
    for one in found.findings:
        grid.add_row(one.state, Text(one.place), Text(one.message, overflow="fold"))
    return grid


def regression_line(harmless: Iterable[tuple[int, str, bool]], rule: Rule) -> str:
    """Return the seed experiment's rule, no tier may regress, as one line.

    `harmless` are the entries at which another ring was run.
    """
    every = list(harmless)
    wanting = [
        f"{format_cells(tier)} {mode}" for tier, mode, is_harmless in every if not is_harmless
    ]
    margin = f"a loss below {rule.margin_ratio:.1%} (one-sided, {1 - rule.alpha:.0%})"
    if not every:
        return "no tier can regress: no other ring was run"
    if not wanting:
        return f"no tier regresses: {margin} is shown at all {len(every)} entries"
    shown = len(every) - len(wanting)
    return (
        f"not shown that no tier regresses: {margin} is shown at {shown} of {len(every)} entries, "
        f"not at {', '.join(wanting)}"
    )


def rule_line(rule: Rule) -> str:
    """Return what the verdicts mean."""
    return (
        f"better, worse: surely past the margin of {rule.margin_ratio:.1%}; equivalent: surely "
        f"within it; undecided: neither ({1 - rule.alpha:.0%}, Holm over all tests)"
    )


def _gain(one: Candidate) -> str:
    return f"{_percent(one.mean)} [{_percent(one.lower)}, {_percent(one.upper)}]"


def _percent(log_ratio: float) -> str:
    """Return a log ratio as a change; what bounds nothing is a question mark."""
    return f"{math.expm1(log_ratio):+.1%}" if abs(log_ratio) < UNBOUNDED_LOG else "?"


def _arms(count: float) -> str:
    return "never" if math.isinf(count) else f"{count:g}"


def _regret(one: Replay, share: float) -> str:
    if (found := one.regret_after(share)) is None:
        return "not run"
    low, middle, high = found
    return f"{middle:.2%} [{low:.2%} to {high:.2%}]"
