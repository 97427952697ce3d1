"""Print the table of a results file of run.py as Markdown.

    python experiments/trade/table.py experiments/trade/results.jsonl
    python experiments/trade/table.py --best experiments/trade/results-2.jsonl

With `--best` a line is a setting: rounds/s of each ring, mean over the passages that measured every
ring of it, relative to the best.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any


def cell(row: dict[str, Any], best: float) -> str:
    """Return one configuration as rounds/s (pages, experts missed a round)."""
    if "error" in row:
        return "does not fit"
    rate = row["rounds_s"]["median"]
    misses = f"({row['page_misses_a_round']:.0f}, {row['expert_misses_a_round']:.0f})"
    shown = f"**{rate:,.0f}**" if rate == best else f"{rate:,.0f}"
    return f"{shown} {misses}"


def print_rates(rows: list[dict[str, Any]], rings: list[int]) -> None:
    """Print a line a passage and setting, with what was missed."""
    groups: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        groups[(*setting_of(row), row.get("seed", 1))][row["ring"]] = row
    print_head(["passage"], rings)
    for (*setting, seed), by_ring in sorted(groups.items()):
        rates = [row["rounds_s"]["median"] for row in by_ring.values() if "error" not in row]
        best = max(rates, default=0.0)
        cells = [cell(by_ring[ring], best) if ring in by_ring else "-" for ring in rings]
        print(" | ".join(["|", *named(setting), str(seed), *cells, "|"]).replace("| |", "|"))


def print_best(rows: list[dict[str, Any]], rings: list[int]) -> None:
    """Print a line a setting: each ring's rounds/s relative to the best one's."""
    groups: dict[tuple[Any, ...], dict[int, dict[int, float]]] = defaultdict(dict)
    for row in rows:
        if "error" not in row:
            by_seed = groups[setting_of(row)].setdefault(row["ring"], {})
            by_seed[row.get("seed", 1)] = row["rounds_s"]["median"]
    print_head(["passages", "best", "rounds/s", "spread"], rings)
    for setting, by_ring in sorted(groups.items()):
        most = max(len(by_seed) for by_seed in by_ring.values())
        means = {r: fmean(s.values()) for r, s in by_ring.items() if len(s) == most}
        best = max(means, key=lambda ring: means[ring])
        spread = f"{means[best] / min(means.values()) - 1:.0%}"
        cells = [f"{means[r] / means[best] - 1:+.0%}" if r in means else "-" for r in rings]
        facts = [str(most), f"**{best:,}**", f"{means[best]:,.0f}", spread]
        print(" | ".join(["|", *named(setting), *facts, *cells, "|"]).replace("| |", "|"))


def setting_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a ring is chosen for."""
    setting = (row.get("context", "own"), row["select"], row["budget_mib"])
    return (*setting, row["depth"], row["drafts"])


def named(setting: list[Any] | tuple[Any, ...]) -> list[str]:
    context, select, budget, depth, drafts = setting
    return [context, str(select), f"{budget} MiB", f"{depth:,}", str(drafts)]


def print_head(more: list[str], rings: list[int]) -> None:
    names = ["context", "selection", "budget", "depth", "drafts", *more]
    print("| " + " | ".join([*names, *(f"{ring:,}" for ring in rings)]) + " |")
    print("| --- " * (len(names) + len(rings)) + "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--best", action="store_true", help="one line a setting")
    parser.add_argument("results", type=Path)
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.results.read_text("utf-8").splitlines()]
    rings = sorted({row["ring"] for row in rows})
    (print_best if args.best else print_rates)(rows, rings)
    measured = [row for row in rows if "error" not in row]
    same = sum(row["same_tokens"] for row in measured)
    print(f"\nSame tokens as the first ring of the mode: {same} of {len(measured)} runs.")


if __name__ == "__main__":
    main()
