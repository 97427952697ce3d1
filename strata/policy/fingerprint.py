"""Say under what conditions a table was measured, and how another session differs from them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from strata.config import AUTO_WINDOW, DEFAULT_VICTIMS, Victims

Mode = Literal["off", "on"]
"""Whether a session drafts."""

DRAFTER_FIELDS = frozenset({"spec", "mtp_window"})
"""Conditions that mean nothing while the drafter is off, and are not compared then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Name everything besides need and ring that moves what a ring is worth.

    `spec` is the drafts a round with the drafter on; a table holds both modes under one value.
    `select` is written as `--kv-select` is, `mtp_window` as `Window.word` does. `context` is
    ``"own"`` where a session reserves for its own need alone, else the max context in cells that
    sessions share.
    """

    device: str
    model_hash: str
    kv_dtype: str
    page_cells: int
    select: str = "0"
    spec: int | Literal["auto"] = 1
    mtp_window: int | str = AUTO_WINDOW.word
    victims: Victims = DEFAULT_VICTIMS
    vram_budget_bytes: int | None = None
    context: int | Literal["own"] = "own"


FIELDS = tuple(field.name for field in fields(Fingerprint))


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Hold one condition that is not the same in the table and in the session."""

    field: str
    table: object
    session: object

    def __str__(self) -> str:
        return f"{self.field} is {_show(self.table)} in the table and {_show(self.session)} here"


def compare(table: Fingerprint, session: Fingerprint, mode: Mode) -> list[Difference]:
    """Return what differs between the conditions of a table and of a session in `mode`."""
    found: list[Difference] = []
    for name in FIELDS:
        if mode == "off" and name in DRAFTER_FIELDS:
            continue
        measured, here = getattr(table, name), getattr(session, name)
        if measured != here:
            found.append(Difference(field=name, table=measured, session=here))
    return found


def differences(table: Fingerprint, session: Fingerprint, mode: Mode = "on") -> list[str]:
    """Return one clause for each condition that differs, none where the table applies."""
    return [str(difference) for difference in compare(table, session, mode)]


def _show(value: object) -> str:
    if value is None:
        return "unset"
    text = str(value)
    return text if len(text) <= 40 else f"{text[:12]}..."
