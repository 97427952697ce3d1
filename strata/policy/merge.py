"""Join policy tables of the same conditions into one.

Tables may be joined where they speak of the same sessions: equal fingerprint, engine release,
default ring and margin; or where another table declares, in writing, that it may be reused under
the conditions of the first. An entry comes from the one table that has it. Where several have it,
one with evidence goes before one whose verdict is ``no evidence``; of several with evidence that
give a session the same ring, the one that was measured last is kept; several that give different
rings contradict each other, and that is refused unless the newest is asked for by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from strata.errors import TableError
from strata.policy.table import DOCUMENTS, Declaration, Entry, PolicyTable, decision_key
from strata.policy.table_document import (
    DECLARABLE,
    PROVENANCE_HASHES,
    PROVENANCE_INSTANTS,
    check_condition,
    to_document,
)
from strata.policy.tiers import make_tiers


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table and what messages call it."""

    name: str
    table: PolicyTable

    @property
    def measured_to(self) -> datetime:
        """Return when the last of it was measured; when it was made, where that is not known."""
        text = self.table.provenance.get("measured_to") or self.table.created
        return datetime.fromisoformat(str(text).replace("Z", "+00:00"))

    @property
    def sha256(self) -> str:
        """Return the hash of its document."""
        return str(to_document(self.table)["sha256"])


def merge_tables(tables: Sequence[NamedTable], *, newest: bool = False) -> PolicyTable:
    """Return one table of the entries of all, under the conditions of the first.

    With `newest` the table that was measured last wins where tables contradict each other. Raises
    TableError that names the tables and what keeps them apart.
    """
    first = tables[0].table
    for other in tables[1:]:
        _check_conditions(tables[0], other)
    tiers = make_tiers({tier.name_cells for one in tables for tier in one.table.tiers})
    chosen: dict[tuple[int, str], tuple[Entry, NamedTable]] = {}
    for tier in tiers:
        for mode in ("off", "on"):
            have = [
                (entry, one)
                for one in tables
                for entry in one.table.entries
                if (entry.tier_cells, entry.mode) == (tier.name_cells, mode)
            ]
            if have:
                chosen[tier.name_cells, mode] = _choose(
                    f"tier {tier}, drafter {mode}", have, newest
                )
    return replace(
        first,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tiers=tiers,
        entries=tuple(entry for entry, _ in chosen.values()),
        provenance=_provenance(tables, chosen),
        declarations=_declarations(tables),
    )


def declare(table: PolicyTable, *, field: str, value: str | int | None, reason: str) -> PolicyTable:
    """Return the table with one more written permission: obey it where `field` is `value`.

    Raises TableError where no session could have that value, where the table is measured under it,
    or says so already.
    """
    check_condition(field, value)
    if _condition(table, field) == value:
        raise TableError(f"the table was measured with {field} {value}; nothing is to be declared")
    if any((one.field, one.value) == (field, value) for one in table.declarations):
        raise TableError(f"the table declares {field} {value} already")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    written = Declaration(field=field, value=value, reason=reason, declared=now)
    return replace(table, declarations=(*table.declarations, written))


def _check_conditions(first: NamedTable, other: NamedTable) -> None:
    one, two = first.table, other.table
    declared = {(item.field, item.value) for item in two.declarations}
    clauses = [
        f"{name} is {_short(_condition(one, name))} in {first.name} and "
        f"{_short(_condition(two, name))} in {other.name}"
        for name in DECLARABLE
        if _condition(one, name) != _condition(two, name)
        and (name, _condition(one, name)) not in declared
    ]
    if clauses:
        raise TableError(
            f"the tables speak of different sessions: {'; '.join(clauses)}; `strata policy "
            f"declare` writes into {other.name} that it may be reused"
        )
    for name in ("default_ring_cells", "margin_ratio"):
        if getattr(one, name) != getattr(two, name):
            raise TableError(
                f"{name} is {getattr(one, name)} in {first.name} and {getattr(two, name)} in "
                f"{other.name}, so their entries do not mean the same; measure one of them again"
            )


def _choose(
    place: str, have: list[tuple[Entry, NamedTable]], newest: bool
) -> tuple[Entry, NamedTable]:
    found = [item for item in have if item[0].verdict != "no evidence"] or have
    found = sorted(found, key=lambda item: item[1].measured_to)
    last = found[-1]
    tied = [item for item in found if item[1].measured_to == last[1].measured_to]
    rings = {entry.ring_cells for entry, _ in (tied if newest else found)}
    if len(rings) > 1:
        listed = "; ".join(
            f"{one.name} gives {entry.ring_cells} ({entry.verdict}, measured to "
            f"{one.measured_to.isoformat()})"
            for entry, one in found
        )
        hint = "they were measured at one time" if newest else "--newest takes the last measured"
        raise TableError(f"{place}: the tables contradict each other: {listed}; {hint}")
    return last


def _provenance(
    tables: Sequence[NamedTable], chosen: dict[tuple[int, str], tuple[Entry, NamedTable]]
) -> dict[str, Any]:
    """Return where a joined table comes from: facts that all share, who gave which entry, and why.

    The reason of an entry comes from the table that gave it.
    """
    every = [one.table.provenance for one in tables]
    facts: dict[str, Any] = {"study": "+".join(str(one.get("study")) for one in every)}
    for name in PROVENANCE_HASHES:
        values = {one.get(name) for one in every}
        facts[name] = values.pop() if len(values) == 1 else None
    used = [one.table.documents for one in tables]
    known = [documents for documents in used if documents is not None]
    if len(known) == len(used):  # else nobody knows which are fresh
        facts[DOCUMENTS] = " ".join(sorted(frozenset[str]().union(*known)))
    ends = dict(zip(PROVENANCE_INSTANTS, (min, max), strict=True))
    for name, end in ends.items():
        told = [str(one[name]) for one in every if one.get(name)]
        facts[name] = (
            end(told, key=lambda text: datetime.fromisoformat(text.replace("Z", "+00:00")))
            if told
            else None
        )
    for number, one in enumerate(tables, start=1):
        places = [f"{tier}/{mode}" for (tier, mode), (_, who) in chosen.items() if who is one]
        givers = {decision_key(*place): who for place, (_, who) in chosen.items()}
        facts |= {
            key: one.table.provenance[key]
            for key, who in givers.items()
            if who is one and key in one.table.provenance
        }
        facts[f"merged_{number}"] = f"{one.sha256}: {' '.join(places) or 'nothing'}"
    return facts


def _declarations(tables: Sequence[NamedTable]) -> tuple[Declaration, ...]:
    """Return what every table declares, in the words of the first."""
    others = [{(item.field, item.value) for item in one.table.declarations} for one in tables[1:]]
    return tuple(
        item
        for item in tables[0].table.declarations
        if all((item.field, item.value) in declared for declared in others)
    )


def _condition(table: PolicyTable, name: str) -> Any:
    """Return the value of one of DECLARABLE under which a table was measured."""
    if name == "engine":
        return table.engine_version.partition("+")[0]
    return getattr(table.fingerprint, name)


def _short(value: object) -> str:
    text = "unset" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:12]}..."
