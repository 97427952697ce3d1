"""Name the entries of a table or a study by what they share."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

from strata.units import format_cells

Shared = TypeVar("Shared", bound=Hashable)


def places_by(entries: Iterable[tuple[Shared, int, str]]) -> dict[Shared, str]:
    """Return, for each thing that entries share, where they stand: ``4K on, 8K on``.

    An entry is (what it shares, its tier in cells, its drafter mode); the order is theirs.
    """
    places: dict[Shared, list[str]] = {}
    for shared, tier_cells, mode in entries:
        places.setdefault(shared, []).append(f"{format_cells(tier_cells)} {mode}")
    return {shared: ", ".join(found) for shared, found in places.items()}
