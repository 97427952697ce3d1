"""Say how two policy tables differ: their conditions, their tiers, their entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strata.policy.fingerprint import FIELDS
from strata.policy.table import Entry, PolicyTable

Change = Literal["only in A", "only in B", "other ring", "other verdict", "other figures"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactChange:
    """One fact that tables say differently of themselves."""

    name: str
    first: object
    second: object


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """One (tier, mode) of which tables do not say the same; an entry that is missing is None."""

    tier_cells: int
    mode: str
    change: Change
    first: Entry | None
    second: Entry | None


@dataclass(frozen=True, slots=True)
class TableDiff:
    """All that differs between two tables, beyond the text of their provenance."""

    facts: tuple[FactChange, ...]
    entries: tuple[EntryChange, ...]

    @property
    def moves_a_ring(self) -> bool:
        """Return whether a session could get another ring from the one than from the other."""
        told = {"only in A", "only in B", "other ring"}
        return bool(self.facts) or any(one.change in told for one in self.entries)


def diff_tables(first: PolicyTable, second: PolicyTable) -> TableDiff:
    """Return what differs from `first` to `second`; dates and provenance are not compared."""
    before, after = conditions(first), conditions(second)
    facts = [
        FactChange(name=name, first=before[name], second=after[name])
        for name in before
        if before[name] != after[name]
    ]
    ones, others = _by_place(first), _by_place(second)
    entries = []
    for place in sorted(set(ones) | set(others)):
        one, other = ones.get(place), others.get(place)
        if (change := _change(one, other)) is not None:
            tier, mode = place
            entries.append(
                EntryChange(tier_cells=tier, mode=mode, change=change, first=one, second=other)
            )
    return TableDiff(tuple(facts), tuple(entries))


def conditions(table: PolicyTable) -> dict[str, object]:
    """Return what must be the same for two tables to speak of the same sessions, and the tiers."""
    facts = {name: getattr(table.fingerprint, name) for name in FIELDS}
    facts["engine"] = table.engine_version.partition("+")[0]
    facts["default_ring"] = table.default_ring_cells
    facts["margin"] = table.margin_ratio
    facts["tiers"] = ", ".join(str(tier) for tier in table.tiers)
    listed = sorted(f"{one.field} {one.value}" for one in table.declarations)
    facts["declarations"] = "; ".join(listed) or None
    return facts


def _by_place(table: PolicyTable) -> dict[tuple[int, str], Entry]:
    return {(entry.tier_cells, entry.mode): entry for entry in table.entries}


def _change(one: Entry | None, other: Entry | None) -> Change | None:
    if one is None:
        return "only in B"
    if other is None:
        return "only in A"
    if one.ring_cells != other.ring_cells:
        return "other ring"
    if one.verdict != other.verdict:
        return "other verdict"
    return None if one == other else "other figures"
