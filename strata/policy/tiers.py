"""Cut the line of needs into tiers, each of which shares one policy entry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strata.units import format_cells

TIER_SLACK_CELLS = 1_024
"""How far a tier reaches past its name: a 128K prompt with its answer still belongs to 128K.

A tier never reaches past the name of the next one: with tiers 512 and 1,024 a prompt of 1,024
cells would otherwise be governed by what was measured at 512.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """Name the needs in (lower, upper]; `name_cells` is the prompt length that it stands for."""

    name_cells: int
    lower_cells: int
    upper_cells: int

    def contains(self, need_cells: int) -> bool:
        """Return whether a session of `need_cells` belongs to this tier."""
        return self.lower_cells < need_cells <= self.upper_cells

    def __str__(self) -> str:
        return format_cells(self.name_cells)


def make_tiers(names_cells: Iterable[int]) -> tuple[Tier, ...]:
    """Return adjoining tiers for `names_cells`, in ascending order, the first from zero.

    Raises ValueError for a name that is not positive or that occurs twice.
    """
    names = sorted(names_cells)
    if any(name <= 0 for name in names) or len(set(names)) != len(names):
        raise ValueError(f"tier names must be positive and distinct, got {names}")
    tiers: list[Tier] = []
    lower = 0
    for name, following in zip(names, [*names[1:], None], strict=True):
        upper = name + TIER_SLACK_CELLS
        if following is not None:
            upper = min(upper, following)
        tiers.append(Tier(name_cells=name, lower_cells=lower, upper_cells=upper))
        lower = upper
    return tuple(tiers)


def tier_of(need_cells: int, tiers: Sequence[Tier]) -> Tier | None:
    """Return the tier that holds `need_cells`, None outside of all of them."""
    for tier in tiers:
        if tier.contains(need_cells):
            return tier
    return None
