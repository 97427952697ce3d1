"""Lay out a table so that it fits the terminal and no word or number in it is ever cut.

As it is where there is room; else with cells that break at blanks, or with columns stacked in two
or three lines a row, whichever is shorter; else a record a row, with a line for each column. A word
longer than a line overflows it whole. Cells are plain text: nothing in them is markup, and control
characters are shown, not obeyed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from strata.printable import printable

MIN_COLUMNS = 20
"""A terminal that says it is narrower is written to as if it had these."""
MAX_STACKED = 3
"""Lines of a row at most; a record is read more easily than more."""
GAP = 2

Block = dict[int, int]
"""Columns that stand side by side, with the width of each; a row is one line of blocks or more."""


@dataclass(frozen=True, slots=True)
class _Grid:
    """What a table says: the head of each column, and the rows."""

    heads: list[str]
    right: list[bool]
    """Whether a column stands at its right edge."""
    rows: list[list[str]]
    ends: list[bool]
    """Whether a section ends behind the row."""
    headless: bool

    def columns(self) -> Iterator[list[str]]:
        """Yield the texts of each column, its head first."""
        for index, head in enumerate(self.heads):
            yield [head, *(row[index] for row in self.rows)]


def plain(text: str) -> str:
    """Return `text` with all that a terminal would obey spelt out, but for lines and tabs."""
    return printable(text, keep="\n\t")


def lay_out(table: Table, columns: int | None) -> list[str]:
    """Return the lines of `table` for a terminal of so many columns, None for any number."""
    grid = _read(table)
    natural = [max(map(cell_len, column)) for column in grid.columns()]
    whole = _width(natural)
    room = whole if columns is None else max(MIN_COLUMNS, columns)
    if whole <= room:
        lines = _draw(grid, [dict(enumerate(natural))])
    else:
        drawn = [_draw(grid, blocks) for blocks in (_broken(grid, natural, room),
                                                    _stacked(natural, room)) if blocks]  # fmt: skip
        lines = min(drawn, key=len) if drawn else list(_records(grid, room))
    title = "" if table.title is None else plain(str(table.title))
    if grid.headless:
        return lines
    heading = _fold(title, room if columns else sys.maxsize) if title else []
    return ["", *heading, *lines, ""]


def _read(table: Table) -> _Grid:
    cells = [[_text(cell) for cell in column.cells] for column in table.columns]
    return _Grid(
        [_text(column.header) for column in table.columns],
        [column.justify == "right" for column in table.columns],
        [list(row) for row in zip(*cells, strict=True)],
        [row.end_section for row in table.rows],
        headless=not table.show_header,
    )


def _text(cell: object) -> str:
    return " ".join(plain(cell.plain if isinstance(cell, Text) else str(cell)).split())


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _broken(grid: _Grid, natural: list[int], room: int) -> list[Block]:
    """Return one block of columns that break at blanks; none where their words are too wide."""
    widths = [max(map(cell_len, " ".join(column).split() or [""])) for column in grid.columns()]
    spare = room - _width(widths)
    if spare < 0:
        return []
    order = sorted(range(len(widths)), key=lambda index: natural[index] - widths[index])
    for done, index in enumerate(order):
        more = min(natural[index] - widths[index], spare // (len(order) - done))
        widths[index] += more
        spare -= more
    return [dict(enumerate(widths))]


def _stacked(natural: list[int], room: int) -> list[Block]:
    """Return blocks whose columns are as wide as they like; none where those are too many."""
    blocks: list[Block] = [{}]
    for index, width in enumerate(natural):
        indent = GAP if len(blocks) > 1 else 0
        if blocks[-1] and indent + _width([*blocks[-1].values(), width]) > room:
            blocks.append({})
            indent = GAP
        if indent + width > room:
            return []
        blocks[-1][index] = width
    return blocks if len(blocks) <= MAX_STACKED else []


def _draw(grid: _Grid, blocks: list[Block]) -> list[str]:
    lines: list[str] = []
    if not grid.headless:
        lines += _draw_row(grid, grid.heads, blocks)
        widest = max(_width([*block.values()]) + GAP * bool(n) for n, block in enumerate(blocks))
        # Where a terminal is not UTF-8 a line would be a row of question marks.
        is_utf = (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
        lines.append(("─" if is_utf else "-") * widest)
    for number, (row, ends) in enumerate(zip(grid.rows, grid.ends, strict=True), 1):
        lines += _draw_row(grid, row, blocks)
        if ends and number < len(grid.rows):
            lines.append("")
    return lines


def _draw_row(grid: _Grid, row: list[str], blocks: list[Block]) -> Iterator[str]:
    for number, block in enumerate(blocks):
        folded = [_fold(row[index], width) for index, width in block.items()]
        if number and not any(map(any, folded)):
            continue
        for at in range(max(map(len, folded))):
            line = " " * GAP * bool(number)
            for (index, width), texts in zip(block.items(), folded, strict=True):
                text = texts[at] if at < len(texts) else ""
                blank = " " * (width - cell_len(text))
                line += (blank + text if grid.right[index] else text + blank) + " " * GAP
            yield line.rstrip()


def _records(grid: _Grid, room: int) -> Iterator[str]:
    """Yield a block of lines for each row, `head  value`; blank cells are left out."""
    widest = max(map(cell_len, grid.heads))
    longest = max(
        (cell_len(word) for row in grid.rows for word in " ".join(row).split()), default=0
    )
    aligned = widest if widest + GAP <= min(room // 2, room - longest) else 0
    filled = [""] * len(grid.heads)
    for number, row in enumerate(grid.rows):
        filled = _filled(row, filled)
        if number:
            yield ""
        for head, text in zip(grid.heads, filled, strict=True):
            if text:
                yield from _field(head, text, aligned, room)


def _filled(row: list[str], above: list[str]) -> list[str]:
    """Return the row with the blanks at its start said again: a table says a group once."""
    filled = list(row)
    for index, text in enumerate(row):
        if text:
            break
        filled[index] = above[index]
    return filled


def _field(head: str, text: str, aligned: int, room: int) -> Iterator[str]:
    if not head:
        yield from _fold(text, room)
    elif aligned:
        indent = aligned + GAP
        first, *rest = _fold(text, room - indent)
        yield head + " " * (indent - cell_len(head)) + first
        yield from (" " * indent + line for line in rest)
    else:
        first, *rest = _fold(f"{head}: {text}", room, later=GAP)
        yield first
        yield from (" " * GAP + line for line in rest)


def _fold(text: str, room: int, later: int = 0) -> list[str]:
    """Return `text` in lines that break at blanks alone; all but the first are `later` shorter."""
    lines = [""]
    for word in text.split():
        limit = room - (later if len(lines) > 1 else 0)
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) > limit:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
