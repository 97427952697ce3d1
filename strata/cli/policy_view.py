"""Lay out what `strata policy` prints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from strata.policy import Entry, PolicyTable
from strata.policy.diff import TableDiff
from strata.policy.fingerprint import FIELDS
from strata.policy.places import places_by
from strata.policy.table import DOCUMENTS, decision_key
from strata.printable import printable
from strata.units import format_cells

if TYPE_CHECKING:
    from strata.models.backtest import Backtest
    from strata.switches import SessionPlan
    from strata.tuner.check import Checked


def table_facts(table: PolicyTable) -> list[tuple[str, object]]:
    """Return everything a table says of itself but its entries, as (name, value)."""
    commit = f", commit {table.engine_commit}" if table.engine_commit else ""
    facts: list[tuple[str, object]] = [
        ("created", table.created),
        ("engine", printable(f"{table.engine_version}{commit}")),
        *((name, _plain(getattr(table.fingerprint, name))) for name in FIELDS),
        ("default ring", f"{table.default_ring_cells} cells"),
        ("margin", f"{table.margin_ratio:.1%}"),
    ]
    decided = {decision_key(one.tier_cells, one.mode): one for one in table.entries}
    facts += [
        (printable(name), _plain(value))
        for name, value in table.provenance.items()
        if name not in decided and name != DOCUMENTS
    ]
    if table.documents is not None:
        facts.append(("chosen on", f"{len(table.documents)} documents"))
    facts += _reasons(table, decided)
    facts += [
        (
            f"declared {item.field}",
            f"{_plain(item.value)} ({printable(item.reason)}, {item.declared})",
        )
        for item in table.declarations
    ]
    return facts


def _reasons(table: PolicyTable, decided: Mapping[str, Entry]) -> list[tuple[str, object]]:
    """Return why entries are as they are, each reason once, with the entries that share it."""
    sharing = places_by(
        (_plain(table.provenance[name]), entry.tier_cells, entry.mode)
        for name, entry in decided.items()
        if name in table.provenance
    )
    everywhere = len(sharing) == 1
    return [
        ("decided", reason if everywhere else f"{places}: {reason}")
        for reason, places in sharing.items()
    ]


def table_entries(table: PolicyTable) -> Table:
    """Return the entries of a table, by tier."""
    grid = Table(
        "tier", "need", "drafter", "ring", "verdict", "gain [interval]", "pairs", "passages"
    )
    for tier in table.tiers:
        for entry in table.entries:
            if entry.tier_cells != tier.name_cells:
                continue
            grid.add_row(
                str(tier),
                f"{tier.lower_cells + 1}-{tier.upper_cells}",
                entry.mode,
                str(entry.ring_cells),
                entry.verdict + (" (predicted)" if entry.predicted else ""),
                Text(str(entry.gain or "-")),
                str(entry.pairs),
                str(entry.passages),
            )
    return grid


def diff_facts(found: TableDiff) -> Table:
    """Return the conditions that two tables say differently of themselves."""
    grid = Table("condition", "A", "B", box=SIMPLE_HEAD)
    for fact in found.facts:
        grid.add_row(fact.name, Text(_plain(fact.first)), Text(_plain(fact.second)))
    return grid


def diff_entries(found: TableDiff) -> Table:
    """Return the entries of which two tables do not say the same."""
    grid = Table("tier", "drafter", "change", "A", "B", box=SIMPLE_HEAD)
    for one in found.entries:
        grid.add_row(
            format_cells(one.tier_cells),
            one.mode,
            one.change,
            Text(_entry(one.first)),
            Text(_entry(one.second)),
        )
    return grid


def checked_table(found: Sequence[Checked], margin_ratio: float) -> Table:
    """Return what entries measured here beside what their table says of them."""
    grid = Table(
        "tier", "drafter", "ring", "table says", "measured here", "passages", "outcome", "",
        title=f"gain over the default ring; claimed: more than {margin_ratio:.1%}",
        title_justify="left", box=SIMPLE_HEAD,
    )  # fmt: skip
    for one in found:
        here = "-" if one.mean is None else f"{math.expm1(one.mean):+.1%}"
        if math.isfinite(one.lower):
            here += f" [{math.expm1(one.lower):+.1%}, {math.expm1(one.upper):+.1%}]"
        grid.add_row(
            format_cells(one.entry.tier_cells),
            one.entry.mode,
            str(one.entry.ring_cells),
            Text(str(one.entry.gain or "-")),
            Text(here),
            f"{one.passages}, {one.fresh} fresh",
            one.outcome,
            Text(one.reason),
        )
    return grid


def decision_reasons(plan: SessionPlan) -> list[tuple[str, object]]:
    """Return why a ring was decided, as (name, value)."""
    decision, request, demand = plan.decision, plan.request, plan.demand
    lines: list[tuple[str, object]] = [
        ("ring", f"{decision.ring_cells} cells, of which {decision.pool_cells} are reserved"),
        ("why", decision.reason),
        ("policy", f"{request.policy}, from {plan.resolved.policy_origin}"),
        ("need", f"{decision.need_cells} cells in pages of {request.page_cells}"),
        ("max context", f"{request.max_context_cells} cells"),
        ("floor", f"{decision.floor_cells} cells"),
        ("cap", f"{decision.cap_cells} cells"),
        ("minimum", f"{decision.minimum_cells} cells"),
        ("default", f"{request.default_cells} cells"),
        ("drafts", f"{plan.drafts} a round" if plan.drafts else "none"),
    ]
    if demand.drafting:
        lines.append(("window", f"{demand.window(decision.pool_cells)} cells"))
    if request.policy == "learned":
        lines += [
            ("tier", decision.tier or "none"),
            ("table", decision.table or "none"),
            ("gain", decision.gain or "none expected"),
        ]
    return lines


def backtest_table(result: Backtest) -> Table:
    """Return what each policy chose at each row and what that measured."""
    grid = Table("row", "tier", "drafter", "policy", "ring", "measured", box=SIMPLE_HEAD)
    for item in result.results:
        first: tuple[str, str, str] = (
            item.row.id,
            format_cells(item.row.tier_cells),
            item.row.mode,
        )
        for policy, outcome in item.outcomes.items():
            grid.add_row(*first, policy, str(outcome.ring_cells), Text(str(outcome)))
            first = ("", "", "")
        grid.add_section()
    return grid


def backtest_notes(result: Backtest) -> list[str]:
    """Return what the learned columns rest on, one sentence a line."""
    fit = result.fit
    noise = (
        f"no bound, as the noise needs three same-ring rows, not all zero, and there are "
        f"{fit.degrees_of_freedom}"
    )
    if fit.noise_log_sd is not None:
        noise = (
            f"noise {fit.noise_log_sd:.4f} (root mean square of {fit.degrees_of_freedom} "
            "same-ring log ratios) or the rows' own scatter where that is wider, one-sided 95 %, "
            "uncorrected"
        )
    lines = [
        "learned is a direct estimate, in sample: mean log ratio by tier, drafter and pool; "
        f"{noise}; beside it with the row left out"
    ]
    if fit.one_pool_rows:
        lines.append(
            f"{fit.one_pool_rows} rows compare rings that reserve one pool at their prompt: no "
            "evidence for either, and not counted as noise"
        )
    lines += [
        f"  tier {item.tier_cells}, drafter {item.mode}, ring {item.ring_cells}: "
        f"{item.effect_ratio:+.1%} from {item.rows} rows, lower bound "
        + ("none" if item.lower_ratio is None else f"{item.lower_ratio:+.1%}")
        for item in fit.estimates
    ]
    return lines


def _entry(entry: Entry | None) -> str:
    if entry is None:
        return "-"
    predicted = ", predicted" if entry.predicted else ""
    counts = f"{entry.pairs} pairs, {entry.passages} passages{predicted}"
    return f"{entry.ring_cells}, {entry.verdict}, {entry.gain or 'no gain'}, {counts}"


def _plain(value: object) -> str:
    return "unset" if value is None else printable(value)
