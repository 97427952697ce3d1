"""Say what a laid-out table has cut: every word of every cell must stand in it whole."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from strata.cli.tables import MIN_COLUMNS, lay_out, plain

_WORDS = re.compile(r"[\s─]+")


def words_of(table: Table) -> Counter[str]:
    """Return the words of the cells, which no layout may cut, drop or invent."""
    cells = [cell for column in table.columns for cell in column.cells]
    texts = [cell.plain if isinstance(cell, Text) else str(cell) for cell in cells]
    return Counter(word for text in texts for word in _WORDS.split(plain(text)) if word)


def check_layout(
    table: Table,
    columns: int | None,
    lay_out: Callable[[Table, int | None], list[str]] = lay_out,
) -> list[str]:
    """Return the lines of `table`; raise AssertionError where a word is cut or a line too long."""
    lines = lay_out(table, columns)
    shown = Counter(_WORDS.split(" ".join(lines)))
    missing = words_of(table) - shown
    assert not missing, (columns, missing, lines)
    assert not any("\x1b" in line for line in lines)
    if columns is not None:
        room = max(columns, MIN_COLUMNS)
        for line in lines:
            # A word, or the head of a field and a word behind it, may be longer than any line.
            assert cell_len(line) <= room or len(line.split()) == 1, (columns, line)
    return lines


def watch(inner: Callable[[Table, int | None], list[str]]) -> Callable[..., list[str]]:
    """Return a `lay_out` that holds every table it is given against some widths."""

    def watched(table: Table, columns: int | None) -> list[str]:
        for width in (20, 33, 60, 80, 113):
            check_layout(table, width, inner)
        return inner(table, columns)

    return watched
