"""The picture of a replay: best found and regret against arms, median and band over seeds."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from strata.errors import UsageError
from strata.files import write_whole
from strata.tuner.replay import BAND, Replay
from strata.tuner.report.figures import FAINT, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png")
COLOURS = {
    "cost-model": "#2563a8",
    "random": "#c2571a",
    "tpe": "#2f855a",
    "grid": "#8e44ad",
    "gp": "#0e7490",
}


def check_picture(path: Path) -> None:
    """Raise UsageError now where no picture could be drawn when the work is over."""
    if path.suffix not in FORMATS:
        raise UsageError(f"--out: {path.name!r} ends in none of {', '.join(FORMATS)}")


def draw_replays(replays: Sequence[Replay], path: Path) -> None:
    """Draw best found (left) and regret (right) of every sampler into an SVG or a PNG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 3.4), layout="constrained")
        found, regret = figure.subplots(1, 2)
        for one in replays:
            _curve(found, 100 * np.expm1(one.found), one.sampler)
            _curve(regret, 100 * one.regret_ratio, one.sampler)
        found.axhline(100 * np.expm1(replays[0].best), color=FAINT, lw=1, ls="--")
        found.set_ylabel("best found over the default ring, %")
        regret.axhline(1, color=FAINT, lw=1, ls="--")
        regret.set_ylabel("regret, %")
        regret.set_ylim(bottom=0)
        for panel in (found, regret):
            panel.axvline(replays[0].num_arms / 4, color=FAINT, lw=1, ls=":")
            panel.set_xlabel(f"arms measured, of {replays[0].num_arms} (dotted: a quarter)")
            panel.set_xlim(0, replays[0].found.shape[1] - 1)
        found.legend(frameon=False, loc="lower right")
        content = io.BytesIO()
        metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(content, format=path.suffix[1:], dpi=150, metadata=metadata)
    write_whole(path, content.getvalue())


def _curve(panel: Axes, values: np.ndarray, sampler: str) -> None:
    """Draw the median over seeds with its band."""
    low, middle, high = np.percentile(values, (BAND[0], 50, BAND[1]), axis=0)
    arms, colour = np.arange(values.shape[1]), COLOURS[sampler]
    panel.fill_between(arms, low, high, step="post", color=colour, alpha=0.15, lw=0)
    panel.step(arms, middle, where="post", color=colour, lw=1.8, label=sampler)
