"""Draw the pictures of the H200 experiments from their committed results.

    python experiments/figures.py

Writes trade/trade.svg, gpu-decode/parts.svg, evict/hits.svg, h200-campaign/gains.svg and
h200-campaign/gains-2.svg beside the results.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

from strata.models.frame import pair_table, passage_means
from strata.tuner.evidence import evidence_of
from strata.tuner.report.figures import COLOURS, LEDGER_COLOURS, STYLE
from strata.tuner.store import MemoryStore, import_study
from strata.units import format_cells

HERE = Path(__file__).parent
Json = dict[str, Any]
BUDGETS_MIB = (40, 48, 64, 80)
TRADE_DEPTHS = (8_192, 32_768, 65_536, 131_072)
PARTS = (
    "projections", "attention", "experts", "head", "drafter", "selection", "resolve", "gather",
    "expert fetch", "append", "other",
)  # fmt: skip
PART_COLOURS = (*LEDGER_COLOURS, "#d69e2e", "#a0aec0", "#cbd5e0")
VICTIMS = {"clock": "#2563a8", "lrfu": "#c2571a", "lru": "#64748b", "belady": "#2f855a"}


def main() -> None:
    with mpl.rc_context({**STYLE, "savefig.bbox": "tight"}):
        trade(HERE / "trade")
        parts(HERE / "gpu-decode")
        hits(HERE / "evict")
        gains(HERE / "h200-campaign", ("own", "shared"), "gains.svg")
        gains(HERE / "h200-campaign", ("own-2", "shared-2"), "gains-2.svg")


def trade(folder: Path) -> None:
    """Draw rounds/s by ring, a line for each mode, budgets beside and depths below each other."""
    rates: dict[tuple[int, int, int], dict[int, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for line in (folder / "results-2.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "error" in row or row["select"] != "2048" or row.get("context", "own") != "own":
            continue
        place = rates[row["budget_mib"], row["depth"], row["drafts"]]
        place[row["ring"]].append(row["rounds_s"]["median"])
    figure, axes = plt.subplots(
        len(TRADE_DEPTHS), len(BUDGETS_MIB), figsize=(10, 8), sharex=True, layout="constrained"
    )
    for i, depth in enumerate(TRADE_DEPTHS):
        for j, budget in enumerate(BUDGETS_MIB):
            ax = axes[i][j]
            for drafts, mode in ((0, "off"), (3, "on")):
                draw_rates(ax, rates[budget, depth, drafts], mode)
            ax.set_xscale("log", base=2)
            ax.set_xticks([2_048, 4_096, 8_192, 16_384], ["2K", "4K", "8K", "16K"])
            ax.minorticks_off()
            ax.set_title(f"{format_cells(depth)} under {budget} MiB")
            if not ax.lines:
                ax.text(0.5, 0.5, "does not fit", ha="center", va="center", transform=ax.transAxes)
                ax.set_yticks([])
    axes[0][0].legend(frameon=False)
    figure.supxlabel("ring, cells")
    figure.supylabel("rounds/s, of the best ring")
    save(figure, folder / "trade.svg")


def draw_rates(ax: Any, by_ring: dict[int, list[float]], mode: str) -> None:
    """Draw one line relative to its best ring, of rings that every passage measured."""
    most = max((len(found) for found in by_ring.values()), default=0)
    means = {ring: fmean(found) for ring, found in sorted(by_ring.items()) if len(found) == most}
    if not means:
        return
    best = max(means, key=lambda ring: means[ring])
    colour = COLOURS[mode]
    label = "no drafter" if mode == "off" else "3 drafts"
    shares = [rate / means[best] for rate in means.values()]
    ax.plot(list(means), shares, color=colour, marker=".", label=label)
    ax.plot([best], [1], color=colour, marker="o", markersize=8)
    ax.set_ylim(0.6, 1.04)


def parts(folder: Path) -> None:
    """Draw what each profiled round spends where, and what the clock says of it."""
    text = (folder / "profile.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    names = [round_name(row) for row in rows]
    figure, ax = plt.subplots(figsize=(9, 0.42 * len(rows) + 1), layout="constrained")
    left = [0.0] * len(rows)
    for part, colour in zip(PARTS, PART_COLOURS, strict=True):
        us = [row["parts"].get(part, {"us_round": 0.0})["us_round"] for row in rows]
        if any(us):
            ax.barh(names, us, left=left, color=colour, label=part, height=0.7)
            left = [start + more for start, more in zip(left, us, strict=True)]
    clock = [row["wall_us_round"] for row in rows]
    ax.plot(clock, names, linestyle="", marker="|", markersize=14, color="black", label="clock")
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.grid(visible=True, axis="x")
    ax.set_xlabel("us a round")
    ax.legend(frameon=False, ncols=6, loc="lower center", bbox_to_anchor=(0.4, 1.0))
    save(figure, folder / "parts.svg")


def round_name(row: Json) -> str:
    """Return what a profiled round was."""
    ring = row.get("ring")
    words = [format_cells(row["depth"]), f"{row['drafts']} drafts"]
    words.append(f"selection {row['select']}" if row.get("select") else "dense")
    words.append(f"ring {ring:,}" if ring else "all resident")
    if row.get("budget"):
        words.append(row["budget"])
    return ", ".join(words)


def hits(folder: Path) -> None:
    """Draw hit rates by ring right behind the prompt and from 256 tokens on, by victims."""
    found = json.loads((folder / "results-128k.json").read_text(encoding="utf-8"))["figures"]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    windows = (("first_ratio", "first 32 rounds"), ("last_ratio", "last 64 of 319 rounds"))
    for ax, (ratio, title) in zip(axes, windows, strict=True):
        for policy, colour in VICTIMS.items():
            for seeded, style in ((True, "-"), (False, ":")):
                line = [f for f in found if f["policy"] == policy and f["seeded"] == seeded]
                ax.plot(
                    [f["multiple"] for f in line],
                    [100 * f[ratio] for f in line],
                    color=colour,
                    linestyle=style,
                    marker=".",
                    label=policy if seeded else f"{policy}, not seeded",
                )
        ax.set_xscale("log", base=2)
        ax.set_xticks([1, 2, 4, 8, 16], ["1x", "2x", "4x", "8x", "16x"])
        ax.set_title(title)
        ax.set_xlabel("ring, times the selection")
    axes[0].set_ylabel("pages that hit, %")
    axes[1].legend(frameon=False, fontsize=7.5)
    save(figure, folder / "hits.svg")


def gains(folder: Path, studies: tuple[str, str], name: str) -> None:
    """Draw each ring's gain over the default one in two studies, 95 % t intervals of passages."""
    figure, axes = plt.subplots(2, 5, figsize=(11, 5), sharey="row", layout="constrained")
    for row, study in zip(axes, studies, strict=True):
        store = MemoryStore()
        record, _, _ = import_study(store, folder / study / "trials")
        trials = evidence_of(store, record)
        pairs = passage_means(pair_table(trials))
        for ax, tier in zip(row, sorted(trials["tier_cells"].unique()), strict=True):
            ax.set_title(f"{format_cells(int(tier))}, {study.partition('-')[0]} context")
            if tier not in set(pairs["tier_cells"]):
                ax.text(0.5, 0.5, "one ring", ha="center", va="center", transform=ax.transAxes)
            for mode, colour in COLOURS.items():
                mine = pairs[(pairs["tier_cells"] == tier) & (pairs["mode"] == mode)]
                logs = mine.groupby("ring_cells")["log_ratio"].agg(["mean", "sem", "count"])
                half = logs["sem"] * stats.t.ppf(0.975, logs["count"] - 1)
                logs.loc[record.default_ring_cells, "mean"] = 0.0
                logs = logs.sort_index()
                label = "no drafter" if mode == "off" else "3 drafts"
                ax.errorbar(
                    logs.index,
                    100 * np.expm1(logs["mean"]),
                    yerr=100 * half.reindex(logs.index).fillna(0.0),
                    color=colour,
                    marker=".",
                    label=label,
                )
            ax.set_xscale("log", base=2)
            ax.set_xticks([2_048, 4_096, 8_192, 16_384], ["2K", "4K", "8K", "16K"])
            ax.minorticks_off()
    axes[1][0].legend(frameon=False)
    figure.supxlabel("ring, cells")
    figure.supylabel("gain over a ring of 8,192, %")
    save(figure, folder / name)


def save(figure: Any, path: Path) -> None:
    """Write an SVG that is the same whenever it is drawn from the same figures."""
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    print(path.relative_to(HERE))


if __name__ == "__main__":
    main()
