"""How a bench shows that it goes on, and how it prints a spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from strata.cli.console import err

if TYPE_CHECKING:
    from strata.bench.spread import Spread
    from strata.lm import LanguageModel

QUIET_S = 2.0
"""What ends within this shows no bar."""


class _LateProgress(Progress):
    """A bar that shows itself after QUIET_S."""

    def __init__(self, *columns: ProgressColumn) -> None:
        self._begun = time.monotonic()
        super().__init__(*columns, console=err, transient=True)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return nothing until then."""
        if time.monotonic() - self._begun >= QUIET_S:
            yield from super().get_renderables()


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[..., None]]:
    """Show a bar over `total` steps on stderr while inside.

    What is given is called after each step, or with the number of steps that are done.
    """
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with _LateProgress(*columns) as bar:
        task = bar.add_task(what, total=total)
        yield lambda steps=1: bar.advance(task, steps)


def check(model: LanguageModel, *, selected: bool, pooled: bool) -> None:
    """Hold what the run uses against its references before a speed is printed."""
    from strata.bench.selfcheck import check_run

    with err.status("checking against the references"):
        check_run(model, selected=selected, pooled=pooled)


def show_spread(spread: Spread, digits: int = 0) -> str:
    """Return ``median (least-most)``."""
    median, least, most = (f"{v:,.{digits}f}" for v in (spread.median, spread.min, spread.max))
    return f"{median} ({least}-{most})"
