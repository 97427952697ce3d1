"""Lay out how the learned table fares beside every other way to choose a ring."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from strata.units import format_cells

if TYPE_CHECKING:
    from strata.models.rivals import Rivalry


def rivals_table(found: Rivalry) -> Table:
    """Return what the learned table gains on each rival, with an interval over documents."""
    grid = Table(
        "rival", "learned over it, rounds/s", "verdict", "documents", "entries",
        title="the learned table beside its rivals (95 % t intervals over documents)",
        title_justify="left", box=SIMPLE_HEAD,
    )  # fmt: skip
    for row in found.rivals.to_dict("records"):
        ring = row["ring_cells"]
        words = row["rival"] if ring is None or math.isnan(ring) else f"{row['rival']}: {ring:.0f}"
        missing = f" (+{row['not_measured']} not measured)" if row["not_measured"] else ""
        grid.add_row(
            words,
            Text(f"{_change(row['mean'])} [{_change(row['lower'])}, {_change(row['upper'])}]"),
            row["verdict"],
            str(row["documents"]),
            f"{row['entries']}{missing}",
        )
    return grid


def entries_table(found: Rivalry) -> Table:
    """Return the learned ring of each (tier, mode) and what it gains on the default ring."""
    grid = Table(
        "tier", "drafter", "ring", "best in hindsight", "tables that move it",
        "over the default ring", "lower bound", "no worse by 1 %",
        title="the learned table by entry", title_justify="left", box=SIMPLE_HEAD,
    )  # fmt: skip
    for row in found.entries.to_dict("records"):
        grid.add_row(
            format_cells(row["tier_cells"]),
            row["mode"],
            str(row["ring_cells"]),
            str(row["best_ring_cells"]),
            f"{row['moved']} of {row['documents']}",
            _change(row["mean"]),
            _change(row["lower"]),
            "yes" if row["no_worse"] else "not shown",
        )
    return grid


def rivalry_lines(found: Rivalry) -> Iterator[str]:
    """Yield on which passages policies were scored, and whether no entry is worse."""
    if found.entries.empty:
        yield "no ring ran on two passages or more, so no policy is scored"
        return
    where = "fresh passages, every ring on each" if found.split == "fresh" else "all passages"
    yield (
        f"scored on {where}; a document's passages of all tiers are one text and are left out "
        "together"
    )
    entries: list[dict[str, Any]] = found.entries.to_dict("records")
    wanting = [
        f"{format_cells(one['tier_cells'])} {one['mode']}" for one in entries if not one["no_worse"]
    ]
    shown = f"a loss of 1 % on the default ring is ruled out at {len(entries) - len(wanting)}"
    bounds = f"95 %, Bonferroni over the {found.tests} entries that any table moves"
    if not found.tests:
        bounds = "no table moves any"
    yield f"{shown} of {len(entries)} entries ({bounds})" + (
        f"; not at {', '.join(wanting)}" if wanting else ""
    )


def _change(log_ratio: float) -> str:
    return f"{math.expm1(log_ratio):+.1%}" if abs(log_ratio) < math.log(100) else "?"
