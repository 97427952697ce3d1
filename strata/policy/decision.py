"""Hold what was decided about a ring, with everything a person needs to see why."""

from __future__ import annotations

from dataclasses import dataclass

NOT_OBEYED = "the table does not apply: the default ring"
"""The reason of a ring where a table's conditions are not the session's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Hold a measured gain in decode over the default ring, as a ratio minus one."""

    effect_ratio: float
    lower_ratio: float
    upper_ratio: float | None = None
    confidence: float = 0.95

    def __str__(self) -> str:
        upper = "" if self.upper_ratio is None else f"{self.upper_ratio:+.1%}"
        return f"{self.effect_ratio:+.1%} [{self.lower_ratio:+.1%}, {upper or '...'}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Hold why a table is not obeyed: the short reason, and what a warning says of the table."""

    reason: str
    clause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RingDecision:
    """Hold the ring that a session gets.

    `ring_cells` is what the policy chose; `pool_cells` is what is reserved, never more than the
    max context. `policy` is the rule that decided, ``"none"`` where the whole context is resident
    by request. `gain` is set only where the table's measurement is of this very pool. `table` is
    named only where it was obeyed, and `refused` says why one was not.
    """

    ring_cells: int
    pool_cells: int
    cap_cells: int
    floor_cells: int
    minimum_cells: int
    need_cells: int
    policy: str
    reason: str
    log_line: str
    warnings: tuple[str, ...] = ()
    tier: str | None = None
    gain: Gain | None = None
    table: str | None = None
    refused: Refusal | None = None
