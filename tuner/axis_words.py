"""Name the value of an axis as a part of a study's name, so that two values never share one."""

from __future__ import annotations

from strata.units import format_bytes, format_cells, parse_bytes

_WORDS = {"mtp_window": "window", "vram_budget": "budget"}
"""What the names of studies call a knob, where they are shorter than a plan."""


def axis_word(name: str, value: object) -> str:
    """Return ``knob-value``; the value reads back as it is."""
    return f"{_WORDS.get(name, name)}-{_value(name, value)}"


def _value(name: str, value: object) -> str:
    if name == "vram_budget":
        return "none" if value is None else _bytes(int(str(value)))
    if isinstance(value, int) and name in ("mtp_window", "context"):
        return format_cells(value)
    return str(value).replace("/", "-")


def _bytes(count: int) -> str:
    """Return bytes in the unit that people use where that says all of them, else in bytes."""
    text = format_bytes(count).replace(" ", "").replace(".0", "")
    return text if parse_bytes(text, name="budget") == count else f"{count}B"
