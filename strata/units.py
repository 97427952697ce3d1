"""Read and print sizes the way people write them."""

from __future__ import annotations

import re

from strata.errors import UsageError

_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_CELLS = re.compile(r"\s*(-?\d{1,18})\s*([km]?)\s*", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

MAX_CELLS = 1 << 30


def parse_bytes(text: str, *, name: str) -> int:
    """Return the bytes that `text` names: ``40MiB``, ``1.5G`` (binary), ``500MB`` (decimal).

    A bare suffix (``40M``) is binary, as in llama.cpp; only an explicit ``B`` without ``i`` is
    decimal. Raises UsageError naming `name`, the switch or variable that held the text.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"{name}: {text!r} is not a size; write it like 64MiB, 2G or 500MB")
    number, prefix, binary = match.groups()
    decimal = bool(prefix) and not binary and text.strip().lower().endswith("b")
    value = float(number) * (1000 if decimal else 1024) ** _POWER[prefix.lower()]
    if value != int(value) and not prefix:
        raise UsageError(f"{name}: {text!r} is not a whole number of bytes")
    return int(value)


def parse_cells(text: str, *, name: str) -> int:
    """Return the cells that `text` names: ``32768``, ``32K`` (32 x 1,024) or ``1M``.

    Raises UsageError for anything else; a sign is left to the caller's own rule.
    """
    match = _CELLS.fullmatch(text)
    if match is None:
        raise UsageError(f"{name}: {text!r} is not a number of cells; write it like 32768 or 32K")
    number = int(match.group(1)) * int(1024 ** _POWER[match.group(2).lower()])
    if abs(number) > MAX_CELLS:
        raise UsageError(f"{name}: {text!r} is more than {MAX_CELLS} cells, which no model has")
    return number


def format_cells(count: int) -> str:
    """Return `count` cells as `parse_cells` reads them: 512, or 4K where it is whole."""
    return str(count) if count % 1024 else f"{count // 1024}K"


def format_bytes(count: int) -> str:
    """Return `count` bytes in the largest binary unit that they fill, GiB at most."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")
