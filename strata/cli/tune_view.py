"""Lay out what `strata tune` prints: the progress bar, studies, measurements, verdicts."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from strata.cli.console import err, note
from strata.cli.sweep_table import SoFar
from strata.units import format_cells

if TYPE_CHECKING:
    from strata.tuner import sweep
    from strata.tuner.drive import Started
    from strata.tuner.store import TrialStore
    from strata.tuner.study import StudyRecord

SPEED_PERIOD_S = 600.0
LINES_WITHOUT_A_TERMINAL = 20
WIDE_COLUMNS = 120
"""A terminal that has them shows the elapsed time and a long bar; 80 hold all the rest."""


class SweepBar:
    """Shows how far a sweep is and what it has found; a line now and then in a log file."""

    def __init__(self) -> None:
        wide = err.width >= WIDE_COLUMNS
        elapsed = (TimeElapsedColumn(), TextColumn("elapsed,")) if wide else ()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=30 if wide else 12),
            MofNCompleteColumn(),
            TextColumn("pairs"),
            *elapsed,
            TimeRemainingColumn(),
            TextColumn("left"),
            console=err,
            disable=not err.is_terminal,
            speed_estimate_period=SPEED_PERIOD_S,
        )
        self._so_far = SoFar()
        self._live = Live(
            console=err,
            refresh_per_second=1,  # the cores are being timed
            get_renderable=lambda: Group(self._bar, self._so_far.table()),
        )
        self._started_s = time.monotonic()

    def __enter__(self) -> SweepBar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Leave the bar as it is; safe to call twice."""
        self._live.stop()

    def start(self, started: Started) -> None:
        """Say which study starts and show the bar."""
        study = started.study
        note(
            f"study {study.study} ({study.name}) on {study.device}, model "
            f"{study.model_hash[:12]}, plan {study.plan_sha256[:12]}: "
            f"{started.done_pairs} of {started.total_pairs} pairs are stored"
        )
        if started.not_resumed:
            note(started.not_resumed)
        self._started_s = time.monotonic()
        self._so_far.add(started.stored)
        if err.is_terminal:
            self._live.start()
        self._bar.add_task(study.name, total=started.total_pairs, completed=started.done_pairs)

    def advance(self, progress: sweep.Progress) -> None:
        """Count one pair; a failed one gets a line of its own."""
        pair = progress.pair
        where = f"tier {pair.tier_cells}, drafter {pair.mode}, ring {pair.arm_ring_cells}"
        failed = [record for record in progress.records if record.kind != "ok"]
        if failed:
            note(f"{failed[0].kind} at {where}, {pair.passage}: {failed[0].message}")
        if err.is_terminal:
            self._so_far.add(progress.records)
            self._bar.update(self._bar.task_ids[0], advance=1, description=where)
            return
        step = max(1, progress.total_pairs // LINES_WITHOUT_A_TERMINAL)
        if progress.done_pairs % step == 0 or progress.done_pairs == progress.total_pairs:
            done = f"{progress.done_pairs}/{progress.total_pairs} pairs"
            note(f"{done}, {self._time_left(progress)} left; last: {where}")

    def _time_left(self, progress: sweep.Progress) -> str:
        elapsed_s = time.monotonic() - self._started_s
        speed = progress.work_here / elapsed_s if elapsed_s > 0 else 0.0
        if not speed:
            return "unknown time"
        seconds = round((progress.total_work - progress.done_work) / speed)
        return f"{seconds // 60}:{seconds % 60:02d}"


def study_table(store: TrialStore) -> Table:
    """Return one row for each study of a database."""
    from strata.tuner.sweep import count_pairs

    grid = Table("study", "plan", "device", "model", "engine", "created", "pairs", box=SIMPLE_HEAD)
    for study in store.studies():
        done, total = count_pairs(study, store)
        grid.add_row(
            study.study,
            study.name,
            study.device,
            study.model_hash[:12],
            study.engine_version,
            study.created_at,
            f"{done}/{total}",
        )
    return grid


def study_facts(store: TrialStore, study: StudyRecord) -> list[tuple[str, object]]:
    """Return what is known of a study, as (name, value)."""
    from strata.tuner.conditions import summarise_conditions
    from strata.tuner.sweep import count_pairs

    done, total = count_pairs(study, store)
    names = (
        "study", "name", "device", "kv_dtype", "engine_version", "engine_commit", "model_hash",
        "plan_sha256", "protocol_sha256", "passages_sha256", "search_space_sha256",
        "default_ring_cells", "created_at",
    )  # fmt: skip
    facts: list[tuple[str, object]] = [(name, getattr(study, name) or "-") for name in names]
    machines = summarise_conditions(store.trials(study.study))
    return [*facts, ("pairs", f"{done} of {total}"), *machines]


def measured_table(summary: dict[str, Any]) -> Table:
    """Return what each ring measured, by tier and drafter."""
    grid = Table(
        "tier", "drafter", "ring", "pool", "rounds/s", "tok/s", "tok/round", "hits",
        "gain over default", "passages", "failed",
        title="measured (mean over passages, 95 % t interval of the paired gain)",
        title_justify="left", box=SIMPLE_HEAD,
    )  # fmt: skip
    last: tuple[int, str] | None = None
    for cell in summary["cells"]:
        place = (cell["tier_cells"], cell["mode"])
        if last is not None and place != last:
            grid.add_section()
        first = ("", "") if place == last else (format_cells(place[0]), place[1])
        last = place
        grid.add_row(
            *first,
            f"{cell['ring_cells']}{' (default)' if cell['is_default'] else ''}",
            str(cell["pool_cells"]),
            _number(cell["rounds_per_s"], "{:.1f}"),
            _number(cell["tok_s"], "{:.1f}"),
            _number(cell["tokens_per_round"], "{:.2f}"),
            "-" if cell["hit_ratio"] is None else f"{cell['hit_ratio']:.1%}",
            Text(_gain(cell)),
            str(cell["passages"]),
            str(cell["runs"] - cell["usable_runs"]),
        )
    return grid


def control_line(summary: dict[str, Any]) -> str:
    """Return how far the default ring was from itself, which is what noise alone does here."""
    gains = [
        cell["gain"]["mean"] for cell in summary["cells"] if cell["is_default"] and cell["gain"]
    ]
    if not gains:
        return "no pair of the default ring with itself, so noise alone was not seen"
    return f"the default ring beside itself (A/A) differed by up to {max(map(abs, gains)):.1%}"


def model_lines(summary: dict[str, Any]) -> list[str]:
    """Return how well the cost model predicts what it was not shown, one line each."""
    model = summary["model"]
    if model["refused"]:
        return [f"cost model: not fitted, {model['refused']}"]
    lines = []
    for left_out in dict.fromkeys(one["left_out"] for one in model["errors"]):
        errors = [one for one in model["errors"] if one["left_out"] == left_out]
        figures = ", ".join(f"{one['method']} {one['mean_abs_error']:.1%}" for one in errors)
        lines.append(f"error of a round's time with one {left_out} left out: {figures}")
    return lines


def _number(spread: dict[str, Any] | None, form: str) -> str:
    return "-" if spread is None else form.format(spread["mean"])


def _gain(cell: dict[str, Any]) -> str:
    gain = cell["gain"]
    if gain is None:
        return "-"
    text = f"{gain['mean']:+.1%}"
    if gain["lower"] is not None and gain["upper"] is not None:
        text += f" [{gain['lower']:+.1%}, {gain['upper']:+.1%}]"
    return text + (" (A/A)" if cell["is_default"] else "")
