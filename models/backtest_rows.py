"""Read a CSV of published comparisons and say exactly where one cannot be read."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from strata.errors import UsageError
from strata.policy.fingerprint import Mode
from strata.policy.request import POLICIES
from strata.units import MAX_CELLS

COLUMNS = ("id", "rule", "tier_cells", "mtp", "ring_control", "ring_arm", "delta_pct")
_MODES: dict[str, Mode] = {"0": "off", "1": "on"}
_DECIMAL = re.compile(r"[+-]?(\d{1,9}(\.\d{0,18})?|\.\d{1,18})(e[+-]?\d{1,2})?", re.ASCII | re.I)
"""A figure as tables print it: ``float`` would also take 1_0.5, nan, 1e400 and other digits."""
MOST_PCT = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published comparison: an arm's ring against a control's at one tier and mode."""

    line: int
    id: str
    rule: str
    """The policy that the arm ran under, empty where none was published."""
    tier_cells: int
    mode: Mode
    ring_control_cells: int
    ring_arm_cells: int
    delta_pct: float | None
    """The published change of decode, None where it was not published."""

    @property
    def log_ratio(self) -> float | None:
        """Return the log of the arm's decode over the control's."""
        return None if self.delta_pct is None else float(np.log1p(self.delta_pct / 100))

    @property
    def same_ring(self) -> bool:
        """Return whether both arms had one ring, so that the row measures noise alone."""
        return self.ring_control_cells == self.ring_arm_cells


def read_rows(path: Path) -> tuple[Row, ...]:
    """Return the rows of the CSV at `path`; columns beyond the needed ones are ignored.

    Raises UsageError with the line and the column for anything that cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is not UTF-8 text; give a CSV file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return _parse(text, path)
    except csv.Error as error:
        raise UsageError(f"{path}: is not CSV ({error})") from None


def _parse(text: str, path: Path) -> tuple[Row, ...]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header = next(reader, [])
    for name in COLUMNS:
        if header.count(name) != 1:
            wrong = "is missing" if name not in header else "stands there twice"
            needed = ", ".join(COLUMNS)
            raise UsageError(f"{path}, line 1, column {name}: {wrong}; needed are {needed}")
    rows: list[Row] = []
    for values in reader:
        if not values:
            continue
        place = f"{path}, line {reader.line_num}"
        if len(values) != len(header):
            raise UsageError(f"{place}: {len(values)} fields where the header has {len(header)}")
        row = _row(dict(zip(header, values, strict=True)), reader.line_num, place)
        if any(row.id == other.id for other in rows):
            raise UsageError(f"{place}, column id: {row.id!r} stands there twice")
        rows.append(row)
    if not rows:
        raise UsageError(f"{path}: holds a header and no row")
    return tuple(rows)


def _row(fields: dict[str, str], line: int, place: str) -> Row:
    cells = {
        name: _cells(fields[name], f"{place}, column {name}")
        for name in ("tier_cells", "ring_control", "ring_arm")
    }
    if not fields["id"]:
        raise UsageError(f"{place}, column id: is empty; every row needs a name")
    if fields["mtp"] not in _MODES:
        raise UsageError(
            f"{place}, column mtp: {fields['mtp']!r} is neither 0 (drafter off) nor 1 (on)"
        )
    if fields["rule"] not in ("", *POLICIES):
        raise UsageError(
            f"{place}, column rule: {fields['rule']!r} is no policy; it is empty or one of "
            + ", ".join(POLICIES)
        )
    return Row(
        line=line,
        id=fields["id"],
        rule=fields["rule"],
        tier_cells=cells["tier_cells"],
        mode=_MODES[fields["mtp"]],
        ring_control_cells=cells["ring_control"],
        ring_arm_cells=cells["ring_arm"],
        delta_pct=_percentage(fields["delta_pct"], f"{place}, column delta_pct"),
    )


def _cells(text: str, place: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12 and 0 < int(text) <= MAX_CELLS):
        raise UsageError(f"{place}: {text!r} is not a whole number of cells from 1 to 2^30")
    return int(text)


def _percentage(text: str, place: str) -> float | None:
    if not text:
        return None
    if not _DECIMAL.fullmatch(text) or not -100 < float(text) <= MOST_PCT:
        raise UsageError(
            f"{place}: {text!r} is not a percentage above -100 and up to {MOST_PCT:,.0f}, written "
            "like -9.1; leave it empty if unknown"
        )
    return float(text)
