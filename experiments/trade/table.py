"""Print the table of a results file of run.py as Markdown.

python experiments/trade/table.py experiments/trade/results.jsonl
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any


def cell(row: dict[str, Any], best: float) -> str:
    """Return one configuration as rounds/s (pages, experts missed a round)."""
    if "error" in row:
        return "does not fit"
    rate = row["rounds_s"]["median"]
    misses = f"({row['page_misses_a_round']:.0f}, {row['expert_misses_a_round']:.0f})"
    shown = f"**{rate:,.0f}**" if rate == best else f"{rate:,.0f}"
    return f"{shown} {misses}"


def main() -> None:
    rows = [json.loads(line) for line in Path(sys.argv[1]).read_text("utf-8").splitlines()]
    rings = sorted({row["ring"] for row in rows})
    groups: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        setting = (row.get("context", "own"), row["select"], row["budget_mib"])
        groups[(*setting, row["depth"], row["drafts"], row.get("seed", 1))][row["ring"]] = row
    names = "| context | selection | budget | depth | drafts | passage | "
    print(names + " | ".join(f"{ring:,}" for ring in rings) + " |")
    print("| --- " * (6 + len(rings)) + "|")
    for (context, select, budget, depth, drafts, seed), by_ring in sorted(groups.items(), key=str):
        rates = [row["rounds_s"]["median"] for row in by_ring.values() if "error" not in row]
        cells = [
            cell(by_ring[ring], max(rates, default=0.0)) if ring in by_ring else "-"
            for ring in rings
        ]
        setting = f"| {context} | {select} | {budget} MiB | {depth:,} | {drafts} | {seed} | "
        print(setting + " | ".join(cells) + " |")
    measured = [row for row in rows if "error" not in row]
    same = sum(row["same_tokens"] for row in measured)
    print(f"\nSame tokens as the first ring of the mode: {same} of {len(measured)} runs.")


if __name__ == "__main__":
    main()
