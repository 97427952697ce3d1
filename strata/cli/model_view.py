"""Lay out what the `strata model` commands print."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from strata.units import format_cells

if TYPE_CHECKING:
    import pandas as pd

    from strata.models.cost_model import RingCostModel
    from strata.models.judgement import Judgement

UNITS = {
    "rounds": "a round",
    "drafts": "a further row",
    "read_cells": "a cell that one row reads",
    "further_row_cells": "a cell that a further row reads",
    "selecting": "selecting pages, one row",
    "further_row_selecting": "selecting pages, a further row",
    "scored_cells": "a cell whose bounds one row scores",
    "further_row_scored_cells": "a cell that a further row scores",
    "missed_cells": "a cell that the ring misses",
    "page_fetches": "having pages to fetch",
    "window_cells": "a cell of the drafter's window, a draft",
    "missed_experts": "an expert that is fetched",
    "expert_fetches": "having experts to fetch",
}
"""What each feature counts, in words."""
COUNTS = {
    "depth_cells": "depths", "pool_cells": "pools", "drafts": "drafts",
    "expert_slots": "expert slots",
}  # fmt: skip
DIGITS = 3
EQUAL = 1e-9


def prices_table(model: RingCostModel) -> Table:
    """Return what a unit of each feature costs."""
    grid = Table("what a round pays for", "price, ns", box=SIMPLE_HEAD)
    for name, price in model.round_time_.prices_s.items():
        grid.add_row(UNITS[name], f"{1e9 * price:.{DIGITS}g}")
    return grid


def fitted_lines(model: RingCostModel) -> Iterator[str]:
    """Yield what was measured and how wide the intervals are, a line each."""
    for mode, seen in sorted(model.measured_.items()):
        ranges = (f"{COUNTS[name]} {low:,.0f} to {high:,.0f}" for name, (low, high) in seen.items())
        yield f"drafter {mode}: {', '.join(ranges)}; elsewhere there is no evidence"
    for (name, mode), width in sorted(model.half_widths_.items()):
        reach = f"within {math.expm1(width):.1%}" if math.isfinite(width) else "unbounded"
        yield f"{name} with the drafter {mode}: {model.confidence:.0%} of new passages {reach}"


def errors_table(found: Judgement) -> Table:
    """Return the error of each method at what was left out."""
    grid = Table(
        "left out", "method", "configurations", "mean error", "largest", "rank correlation",
        title="error of a round's time", title_justify="left", box=SIMPLE_HEAD,
    )  # fmt: skip
    for row in found.errors.to_dict("records"):
        grid.add_row(
            row["left_out"],
            row["method"],
            str(row["configurations"]),
            f"{row['mean_abs_error']:.1%}",
            f"{row['max_abs_error']:.1%}",
            _number(row["rank_correlation"], "{:.3f}"),
        )
    if not found.errors.shape[0]:
        grid.add_row("-", "no depth and no ring lies between others", "0", "-", "-", "-")
    return grid


def coverage_lines(found: Judgement) -> Iterator[str]:
    """Yield how often intervals held, and how often the model was silent where it should be."""
    for one in found.coverage:
        yield (
            f"{one.quantity}: the {one.confidence:.0%} interval held {one.hits} of {one.draws} "
            f"draws that were left out, of {one.documents} independent documents: "
            f"{one.lower:.0%} to {one.upper:.0%} by document (p {one.p_value:.2f})"
        )
    silence = found.silence
    yield (
        f"beyond the measured depths: no evidence {silence.silent} of {silence.asked} times, "
        f"always at {silence.silent_depths} of {silence.depths} depths that were left out"
    )


def losses_table(found: Judgement) -> Table:
    """Return what each policy loses against the best ring, on other passages and other depths."""
    grid = Table(
        "policy", "regret, mean", "worst", "entries", "depth left out, mean", "worst", "entries",
        title="loss against the best ring", title_justify="left", box=SIMPLE_HEAD,
    )  # fmt: skip
    regret = {row["policy"]: row for row in found.regret.to_dict("records")}
    choices = {row["policy"]: row for row in found.choices.to_dict("records")}
    for policy in dict.fromkeys([*regret, *choices]):
        grid.add_row(policy, *_loss(regret.get(policy)), *_loss(choices.get(policy)))
    return grid


def predictions_table(found: pd.DataFrame, confidence: float) -> Table:
    """Return one row for each session; the fastest ring of a (depth, drafts) is marked."""
    grid = Table(
        "depth", "drafts", "ring", "expert slots", f"rounds/s [{confidence:.0%}]", "tokens/round",
        f"tok/s [{confidence:.0%}]", "over default", "",
        box=SIMPLE_HEAD,
    )  # fmt: skip
    last = None
    for (depth, drafts), group in found.groupby(["depth_cells", "spec"], sort=True):
        if last not in (None, depth):
            grid.add_section()
        last = depth
        known = group[(group["no_evidence"] == "") & (group["obstacle"] == "")]
        best = None if known.empty else fastest(known)
        default = known[known["ring_cells"] == known["default_ring_cells"]]["round_s"]
        for rows in _runs(group):
            row, last_row = rows[0][1], rows[-1][1]
            is_default = row["ring_cells"] == row["default_ring_cells"]
            over = "-"
            if rows[0][0] in known.index and len(default) and not is_default:
                over = f"{float(default.iloc[0]) / float(row['round_s']) - 1:+.1%}"
            ring = f"{row['ring_cells']}{' (default)' if is_default else ''}"
            grid.add_row(
                format_cells(int(depth)),
                str(drafts),
                ring if len(rows) == 1 else f"{row['ring_cells']} to {last_row['ring_cells']}",
                _number(row["expert_slots"], "{:.0f}") if len(rows) == 1 else "-",
                *_speeds(row),
                over,
                Text(_why(row) or ("fastest" if rows[0][0] == best else "")),
            )
    return grid


def fastest(sessions: pd.DataFrame) -> Any:
    """Return the index of the session with the shortest round; among equals the default ring's."""
    tied = sessions[sessions["round_s"] <= sessions["round_s"].min() * (1 + EQUAL)]
    default = tied[tied["ring_cells"] == tied["default_ring_cells"]]
    return (tied if default.empty else default).index[0]


def estimated_entries_table(entries: list[dict[str, Any]]) -> Table:
    """Return an estimated policy table, every entry marked as what it is."""
    grid = Table(
        "tier", "drafter", "drafts", "ring", "expert slots", "rounds/s", "tok/s", "over default",
        "verdict", box=SIMPLE_HEAD,
    )  # fmt: skip
    for entry in entries:
        grid.add_row(
            format_cells(entry["tier_cells"]),
            entry["mode"],
            str(entry["drafts"]),
            str(entry["ring_cells"]),
            str(entry["expert_slots"]),
            f"~{entry['rounds_per_s']:,.0f}",
            f"~{entry['tok_s']:,.0f}",
            f"~{entry['effect']:+.1%} of {entry['default_ring_cells']}",
            f"{entry['verdict']} (estimate)",
        )
    return grid


def estimates_table(found: pd.DataFrame) -> Table:
    """Return one row for each session that was asked about."""
    grid = Table(
        "depth", "drafts", "ring", "expert slots", "rounds/s", "tok/s", "", box=SIMPLE_HEAD
    )
    for row in found.to_dict("records"):
        speeds = "-", "-"
        if not row["obstacle"]:
            speeds = f"~{1 / row['round_s']:,.0f}", f"~{row['tok_s']:,.0f}"
        grid.add_row(
            format_cells(row["depth_cells"]),
            str(row["spec"]),
            str(row["ring_cells"]),
            _number(row["expert_slots"], "{:.0f}"),
            *speeds,
            row["obstacle"] or "estimate",
        )
    return grid


def records(found: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the sessions as plain JSON, times in seconds; what is not a number is null."""
    rows = found.astype(object).where(found.notna(), None).to_dict("records")
    return [
        {str(name): None if isinstance(value, float) and math.isinf(value) else value
         for name, value in row.items()}
        for row in rows
    ]  # fmt: skip


def _runs(group: pd.DataFrame) -> list[list[tuple[Any, Any]]]:
    """Return the sessions of a group one by one, neighbours without a number as one run."""
    runs: list[list[tuple[Any, Any]]] = []
    for index, row in group.iterrows():
        if runs and _kind(row) and _kind(row) == _kind(runs[-1][-1][1]):
            runs[-1].append((index, row))
        else:
            runs.append([(index, row)])
    return runs


def _kind(row: Any) -> str:
    """Return the first word of why there is no number, empty where there is one."""
    return _why(row).removeprefix("no evidence: ").partition(" ")[0]


def _speeds(row: Any) -> tuple[Text, str, Text]:
    if row["obstacle"] or row["no_evidence"]:
        return Text("-"), "-", Text("-")
    rounds = _interval(1 / row["round_s"], 1 / row["round_s_upper"], 1 / row["round_s_lower"])
    tokens = _interval(row["tok_s"], row["tok_s_lower"], row["tok_s_upper"])
    return Text(rounds), f"{row['tokens_per_round']:.2f}", Text(tokens)


def _interval(value: float, low: float, high: float) -> str:
    bounds = f" [{low:,.0f}, {high:,.0f}]" if math.isfinite(high) and low > 0 else " [?]"
    return f"{value:,.0f}{bounds}"


def _why(row: Any) -> str:
    silent = f"no evidence: {row['no_evidence']}" if row["no_evidence"] else ""
    return str(row["obstacle"] or silent)


def _loss(row: dict[str, Any] | None) -> tuple[str, str, str]:
    if row is None or not row["entries"]:
        return "-", "-", "-"
    missing = f" (+{row['not_measured']} not measured)" if row["not_measured"] else ""
    return f"{row['mean_pct']:.2f} %", f"{row['worst_pct']:.2f} %", f"{row['entries']}{missing}"


def _number(value: float, form: str) -> str:
    return form.format(value) if math.isfinite(value) else "-"
