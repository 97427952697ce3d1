"""Say what a session was asked for, and what it takes from a table where nobody asked.

A table was measured under some switches that move speed alone: drafts, window, victims, the
default ring. Where a person named none of them the session takes the table's. What moves tokens
(selection, and the page that it selects by) or what a session may hold (budget, max context) is
never taken: it must be named.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from strata.config import Victims, Window
from strata.policy.fingerprint import Difference, Fingerprint, Mode
from strata.policy.table import PolicyTable


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSwitches:
    """Hold the switches that a table may set; None is what nobody named."""

    drafts: int | Literal["auto"] | None = None
    window: Window | None = None
    victims: Victims | None = None
    ring_default_cells: int | None = None

    def filled(self, other: FreeSwitches) -> FreeSwitches:
        """Return these, with `other` where nobody named one."""
        open_ = {one.name: getattr(other, one.name) for one in fields(self)}
        named = {name: getattr(self, name) for name in open_}
        return FreeSwitches(**(open_ | {k: v for k, v in named.items() if v is not None}))

    def beyond(self, own: FreeSwitches) -> str:
        """Return in words what these say otherwise than `own`; empty for nothing."""
        words = {
            "drafts": self.drafts,
            "window": None if self.window is None else self.window.word,
            "victims": self.victims,
            "default ring": self.ring_default_cells,
        }
        differ = [getattr(self, one.name) != getattr(own, one.name) for one in fields(self)]
        told = zip(words.items(), differ, strict=True)
        return ", ".join(f"{name} {word}" for (name, word), differs in told if differs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Hold what a table is held against: conditions, what was named, what is taken else."""

    conditions: Fingerprint
    """Its drafts, window and victims do not count."""
    named: FreeSwitches
    own: FreeSwitches
    """What the session runs with where no table says otherwise: nothing in it is open."""
    need_cells: int

    @property
    def mode(self) -> Mode:
        """Return whether the session drafts, which no table changes."""
        return "off" if self.own.drafts == 0 else "on"

    def under(self, table: PolicyTable) -> FreeSwitches:
        """Return what the session would run with if `table` applied."""
        measured = table.fingerprint
        offered = FreeSwitches(
            victims=measured.victims, ring_default_cells=table.default_ring_cells
        )
        if self.mode == "on":
            window = Window.of_word(measured.mtp_window)
            offered = replace(offered, drafts=measured.spec or None, window=window)
        return self.named.filled(offered).filled(self.own)

    def fingerprint(self, free: FreeSwitches) -> Fingerprint:
        """Return the conditions of the session with `free`."""
        assert free.window is not None
        assert free.victims is not None
        return replace(
            self.conditions,
            spec=free.drafts or 1,
            mtp_window=free.window.word,
            victims=free.victims,
        )

    def obstacles(self, table: PolicyTable) -> list[Difference]:
        """Return what keeps `table` from applying."""
        return table.obstacles(self.fingerprint(self.under(table)), self.mode)

    def has_entry(self, table: PolicyTable) -> bool:
        """Return whether `table` says anything of such a session."""
        return table.lookup(self.need_cells, self.mode)[1] is not None
