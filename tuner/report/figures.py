"""The pictures of a report, as SVG text: drawn from the summary, with the page's own fonts."""

from __future__ import annotations

import io
import math
import re
from typing import TYPE_CHECKING, Any

from strata.units import format_cells

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Json = dict[str, Any]

COLOURS = {"off": "#2563a8", "on": "#c2571a"}
INK, FAINT, GOOD, BAND = "#1f2933", "#9aa5b1", "#2f855a", "#e6f4ea"
WIDEST_INCHES = 4.4
"""A panel shrinks to what a telephone is wide, and its words must still be read there."""
NARROWEST_INCHES = 2.1
ROW_INCHES = 10.7
"""What panels that stand side by side share, gaps not counted; more than it holds go below."""
LEDGER_COLOURS = (
    "#2563a8", "#c2571a", "#2f855a", "#8e44ad", "#b7791f", "#0e7490", "#9f1239", "#64748b",
)  # fmt: skip
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "strata",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e4e7eb",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
}


def draw_all(summary: Json) -> dict[str, list[list[str]]]:
    """Return the pictures by name: rows of panels, each an SVG of its own that a page may stack."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        return {
            "rounds": by_ring(summary, "rounds_per_s", "rounds/s"),
            "decode": by_ring(summary, "tok_s", "tok/s"),
            "gains": gains(summary),
            "choice": choice(summary),
            "acceptance": tokens_per_round(summary),
            "hits": hits(summary),
            "ledger": ledger(summary),
        }


def by_ring(summary: Json, measure: str, unit: str) -> list[list[str]]:
    """Draw one measure by ring, a panel a tier and mode; the table's ring stands on a band."""
    tiers, modes = _axes_of(summary)
    width = min(WIDEST_INCHES, max(NARROWEST_INCHES, ROW_INCHES / len(tiers)))
    rows = []
    for mode in modes:
        every = {tier: _cells(summary, tier, mode) for tier in tiers}
        top = _top([cell for cells in every.values() for cell in cells], measure)
        rows.append([
            _panel_by_ring(summary, tier, mode, measure, (width, unit, top))
            for tier, cells in every.items() if cells
        ])  # fmt: skip
    return rows


def _panel_by_ring(
    summary: Json, tier: int, mode: str, measure: str, look: tuple[float, str, float]
) -> str:
    """Draw one measure at one tier and mode; `look` is the width, the unit and the axis' end."""
    width, unit, top = look
    figure = _figure(width, 2.2)
    panel: Axes = figure.subplots()
    cells, chosen = _cells(summary, tier, mode), _chosen(summary, tier, mode)
    for x, cell in enumerate(cells):
        if cell["ring_cells"] == chosen:
            panel.axvspan(x - 0.42, x + 0.42, color=BAND, lw=0, zorder=0)
        predicted = cell.get(f"predicted_{measure}")
        if predicted is not None:
            panel.plot([x + 0.1, x + 0.34], [predicted["mean"]] * 2, color=INK, lw=1.6)
        _spread(panel, x, cell[measure], COLOURS[mode], hollow=cell["is_default"])
    _ring_axis(panel, cells)
    panel.set_ylim(0, top)
    panel.set_title(f"{format_cells(tier)} prompt, drafter {mode}", loc="left")
    panel.set_ylabel(unit)
    panel.set_xlabel("ring (cells)")
    return _svg(figure, f"{unit} by ring at a {format_cells(tier)} prompt, drafter {mode}")


def gains(summary: Json) -> list[list[str]]:
    """Draw the paired gain of every ring over the default, with the margin that it must clear."""
    every = [cell for cell in summary["cells"] if cell["gain"] is not None]
    margin = 100 * summary["plan"]["decision"]["margin"]
    reach = _reach(every, margin)
    tiers, _ = _axes_of(summary)
    by_tier = {tier: [cell for cell in every if cell["tier_cells"] == tier] for tier in tiers}
    panels = [
        _panel_of_gains(cells, tier, margin, reach) for tier, cells in by_tier.items() if cells
    ]
    return [panels]


def _panel_of_gains(cells: list[Json], tier: int, margin: float, reach: float) -> str:
    figure = _figure(WIDEST_INCHES, 0.24 * len(cells) + 1.0)
    panel: Axes = figure.subplots()
    panel.axvspan(-margin, margin, color="#eef1f4", lw=0, zorder=0)
    panel.axvline(0, color=FAINT, lw=1)
    for y, cell in enumerate(cells):
        gain, colour = cell["gain"], FAINT if cell["is_default"] else COLOURS[cell["mode"]]
        mean = 100 * gain["mean"]
        if gain["lower"] is not None and gain["upper"] is not None:
            ends = [max(-reach, 100 * gain["lower"]), min(reach, 100 * gain["upper"])]
            panel.plot(ends, [y, y], color=colour, lw=2, alpha=0.55, solid_capstyle="butt")
        panel.plot(max(-reach, min(reach, mean)), y, "o", color=colour, ms=5)
        for value in gain["by_passage"].values():
            if abs(100 * value) <= reach:
                panel.plot(100 * value, y, "|", color=colour, ms=7, alpha=0.8)
    panel.set_yticks(range(len(cells)), [_row_name(c).replace("default", "A/A") for c in cells])
    panel.set_ylim(len(cells) - 0.5, -0.5)
    panel.set_xlim(-reach * 1.04, reach * 1.04)
    panel.grid(visible=False, axis="y")
    panel.grid(visible=True, axis="x")
    panel.spines["left"].set_visible(False)
    panel.set_title(f"{format_cells(tier)} prompt", loc="left")
    panel.set_xlabel("gain in rounds/s, %")
    return _svg(figure, f"gain of each ring over the default one at {format_cells(tier)}")


def choice(summary: Json) -> list[list[str]]:
    """Draw, by tier and mode, the default ring, the ring of the table and the measured best."""
    tiers, modes = _axes_of(summary)
    return [[_panel_of_choice(summary, tiers, mode) for mode in modes]]


def _panel_of_choice(summary: Json, tiers: list[int], mode: str) -> str:
    figure = _figure(NARROWEST_INCHES, 2.6)
    panel: Axes = figure.subplots()
    for x, tier in enumerate(tiers):
        rings = [math.log2(cell["ring_cells"]) for cell in _cells(summary, tier, mode)]
        panel.plot([x] * len(rings), rings, "_", color=FAINT, ms=14, mew=1.2)
        entry = _entry(summary, tier, mode)
        if entry is None:
            continue
        if entry["measured_best_ring_cells"]:
            best = math.log2(entry["measured_best_ring_cells"])
            panel.plot(x, best, "*", color="#b7791f", ms=11)
        ring = math.log2(entry["ring_cells"])
        panel.plot(x, ring, "o", mfc="none", mec=GOOD, mew=2, ms=13)
    panel.set_title(f"drafter {mode}", loc="left")
    _tier_axis(panel, tiers)
    every = sorted({cell["ring_cells"] for cell in summary["cells"]})
    panel.set_yticks([math.log2(ring) for ring in every], [format_cells(ring) for ring in every])
    panel.set_ylabel("ring (cells)")
    panel.margins(y=0.12)
    return _svg(figure, f"ring of the table beside the measured best, drafter {mode}")


def tokens_per_round(summary: Json) -> list[list[str]]:
    """Draw tokens a round by tier, one dot a passage: the drafter's part of the speed."""
    tiers, modes = _axes_of(summary)
    if not any(cell["tokens_per_round"] for cell in summary["cells"]):
        return []
    figure = _figure(WIDEST_INCHES, 2.9)
    panel: Axes = figure.subplots()
    for mode in modes:
        for x, tier in enumerate(tiers):
            cells = _cells(summary, tier, mode)
            mine = next((c for c in cells if c["is_default"] and c["tokens_per_round"]), None)
            if mine is not None:
                _spread(panel, x, mine["tokens_per_round"], COLOURS[mode], hollow=False)
    for mode in modes:
        panel.plot([], [], "o", color=COLOURS[mode], label=f"drafter {mode}")
    _tier_axis(panel, tiers)
    panel.set_ylim(bottom=0, top=1.1 * panel.get_ylim()[1])
    panel.set_ylabel("tokens/round")
    panel.legend(frameon=False, loc="lower right")
    return [[_svg(figure, "tokens per round by prompt length")]]


def hits(summary: Json) -> list[list[str]]:
    """Draw the share of page look-ups that found their page resident, by pool size."""
    tiers, modes = _axes_of(summary)
    if not any(cell["hit_ratio"] is not None for cell in summary["cells"]):
        return []
    figure = _figure(WIDEST_INCHES, 2.9)
    panel: Axes = figure.subplots()
    mode = modes[0]
    for shade, tier in enumerate(tiers):
        cells = [c for c in _cells(summary, tier, mode) if c["hit_ratio"] is not None]
        panel.plot(
            [math.log2(c["pool_cells"]) for c in cells],
            [100 * c["hit_ratio"] for c in cells],
            "o-", color=COLOURS[mode], alpha=0.3 + 0.7 * (shade + 1) / len(tiers), ms=5, lw=1.6,
        )  # fmt: skip
        if cells:
            last = cells[-1]
            panel.annotate(
                format_cells(tier), (math.log2(last["pool_cells"]), 100 * last["hit_ratio"]),
                xytext=(4, 4), textcoords="offset points", color=INK,
            )  # fmt: skip
    pools = sorted({c["ring_cells"] for c in summary["cells"]})
    panel.set_xticks([math.log2(pool) for pool in pools], [format_cells(pool) for pool in pools])
    panel.set_ylim(0, 108)
    panel.set_xlabel(f"pool (cells, log scale; drafter {mode})")
    panel.set_ylabel("pages found resident, %")
    return [[_svg(figure, "share of pages found resident by pool size")]]


def ledger_colours(summary: Json) -> dict[str, str]:
    """Return the colour of each holder of device bytes, in the order in which they are drawn."""
    ledgers = [cell["ledger"] for cell in summary["cells"] if cell["ledger"]]
    names = dict.fromkeys(name for one in ledgers for name in one)
    return {name: LEDGER_COLOURS[i % len(LEDGER_COLOURS)] for i, name in enumerate(names)}


def ledger(summary: Json) -> list[list[str]]:
    """Draw who holds the device's bytes, by ring, at the deepest tier, a panel a mode."""
    tiers, modes = _axes_of(summary)
    colours = ledger_colours(summary)
    by_mode = {
        mode: [cell for cell in _cells(summary, tiers[-1], mode) if cell["ledger"]]
        for mode in modes
    }
    panels = [_panel_of_ledger(cells, mode, colours) for mode, cells in by_mode.items() if cells]
    return [panels]


def _panel_of_ledger(cells: list[Json], mode: str, colours: dict[str, str]) -> str:
    figure = _figure(WIDEST_INCHES, 0.34 * len(cells) + 1.0)
    panel: Axes = figure.subplots()
    for y, cell in enumerate(cells):
        left = 0.0
        for name, colour in colours.items():
            width = cell["ledger"].get(name, 0) / (1 << 20)
            panel.barh(y, width, left=left, color=colour, height=0.66)
            left += width
        panel.text(left, y, f"  {left:.1f}" if left >= 1 else f"  {left:.2g}", va="center")
    panel.set_yticks(range(len(cells)), [_row_name(cell) for cell in cells])
    panel.set_ylim(len(cells) - 0.5, -0.5)
    panel.locator_params(axis="x", nbins=5)
    panel.grid(visible=False, axis="y")
    panel.margins(x=0.16)
    panel.set_title(f"drafter {mode}", loc="left")
    panel.set_xlabel("MiB on the device")
    return _svg(figure, f"bytes on the device by ring, drafter {mode}")


def _axes_of(summary: Json) -> tuple[list[int], list[str]]:
    grid = summary["plan"]["grid"]
    measured = {(cell["tier_cells"], cell["mode"]) for cell in summary["cells"]}
    tiers = [tier for tier in grid["tiers"] if any(one[0] == tier for one in measured)]
    return tiers, [mode for mode in grid["modes"] if any(one[1] == mode for one in measured)]


def _cells(summary: Json, tier: int, mode: str) -> list[Json]:
    return [c for c in summary["cells"] if (c["tier_cells"], c["mode"]) == (tier, mode)]


def _entry(summary: Json, tier: int, mode: str) -> Json | None:
    for entry in summary["entries"]:
        if (entry["tier_cells"], entry["mode"]) == (tier, mode):
            found: Json = entry
            return found
    return None


def _chosen(summary: Json, tier: int, mode: str) -> int | None:
    entry = _entry(summary, tier, mode)
    return None if entry is None else entry["ring_cells"]


def _spread(panel: Axes, x: float, spread: Json | None, colour: str, *, hollow: bool) -> None:
    """Draw the passages as faint dots and their mean with its interval; a failure as a cross."""
    if spread is None:
        panel.plot(x, 0.5, "x", color="#9f1239", transform=panel.get_xaxis_transform())
        return
    values = list(spread["by_passage"].values())
    panel.plot([x - 0.2] * len(values), values, ".", color=colour, alpha=0.35, ms=5)
    if spread["lower"] is not None:
        reach = 3 * max(1e-9, max(values) - min(values))  # wider says no more than "unknown"
        low, high = (
            max(spread["lower"], min(values) - reach),
            min(spread["upper"], max(values) + reach),
        )
        panel.plot([x, x], [max(0.0, low), high], color=colour, lw=1.6, alpha=0.7)
    face = "white" if hollow else colour
    panel.plot(x, spread["mean"], "o", mfc=face, mec=colour, mew=1.6, ms=6.5)


def _top(cells: list[Json], measure: str) -> float:
    """Return where the axis of a measure ends, one for all tiers, so that panels compare."""
    values = [0.0]
    for cell in cells:
        if spread := cell[measure]:
            values += [spread["mean"], *spread["by_passage"].values()]
        if predicted := cell.get(f"predicted_{measure}"):
            values.append(predicted["mean"])
    return 1.12 * max(values) or 1.0


def _tier_axis(panel: Axes, tiers: list[int]) -> None:
    panel.set_xticks(range(len(tiers)), [format_cells(tier) for tier in tiers])
    panel.set_xlim(-0.6, len(tiers) - 0.4)
    panel.set_xlabel("prompt (cells)")


def _ring_axis(panel: Axes, cells: list[Json]) -> None:
    names = [
        format_cells(c["ring_cells"]) + ("\ndefault" if c["is_default"] else "") for c in cells
    ]
    panel.set_xticks(range(len(cells)), names)
    panel.set_xlim(-0.6, len(cells) - 0.4)


def _row_name(cell: Json) -> str:
    name = f"{cell['mode']}  ring {format_cells(cell['ring_cells'])}"
    return name + (" (default)" if cell["is_default"] else "")


def _reach(cells: list[Json], margin: float) -> float:
    """Return how far the gain axis reaches: past every mean, not past every wide interval."""
    means = [abs(100 * cell["gain"]["mean"]) for cell in cells]
    return float(min(100.0, max(4 * margin, 10.0, *(1.6 * mean for mean in means))))


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _svg(figure: Figure, says: str) -> str:
    """Return a figure as an SVG element without prologue, dates or a background.

    The names of its groups go, for the next panel of the page has them too.
    """
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = re.sub(r'<g id="[^"]*"', "<g", svg[svg.index("<svg") :])
    return svg.replace("<svg ", f'<svg role="img" aria-label="{says}" ', 1)
