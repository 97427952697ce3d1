"""Hold a policy table: one ring for each depth tier and drafter mode, with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from strata import __version__
from strata.policy.decision import Gain
from strata.policy.fingerprint import Difference, Fingerprint, Mode, compare
from strata.policy.tiers import Tier, tier_of

Verdict = Literal["better", "equivalent", "worse", "undecided", "no evidence", "invalid"]
VERDICTS: tuple[str, ...] = get_args(Verdict)
DOCUMENTS = "documents_sha256"
"""The name under which a table's provenance lists the documents that it was chosen on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Hold what was found for one tier and mode; only ``better`` moves a ring off the default.

    `effect_ratio` and its bounds are decode over the default ring, minus one.
    """

    tier_cells: int
    mode: Mode
    ring_cells: int
    verdict: Verdict
    effect_ratio: float | None = None
    lower_ratio: float | None = None
    upper_ratio: float | None = None
    confidence: float = 0.95
    pairs: int = 0
    passages: int = 0
    predicted: bool = False

    @property
    def gain(self) -> Gain | None:
        """Return the gain with its interval, None where nothing was measured."""
        if self.effect_ratio is None or self.lower_ratio is None:
            return None
        return Gain(
            effect_ratio=self.effect_ratio,
            lower_ratio=self.lower_ratio,
            upper_ratio=self.upper_ratio,
            confidence=self.confidence,
        )


def decision_key(tier_cells: int, mode: str) -> str:
    """Return the name under which a table's provenance says why an entry is as it is."""
    return f"decision_{tier_cells}_{mode}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """Hold one written permission: obey the table where `field` has `value` instead."""

    field: str
    value: str | int | None
    reason: str
    declared: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTable:
    """Hold a whole table; `strata.policy.table_file` reads and writes it."""

    created: str
    engine_version: str
    engine_commit: str | None = None
    fingerprint: Fingerprint
    environment: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    default_ring_cells: int
    margin_ratio: float = 0.0
    tiers: tuple[Tier, ...]
    entries: tuple[Entry, ...]
    declarations: tuple[Declaration, ...] = ()

    def lookup(self, need_cells: int, mode: Mode) -> tuple[Tier | None, Entry | None]:
        """Return the tier of a need and its entry for `mode`, each None where there is none."""
        tier = tier_of(need_cells, self.tiers)
        if tier is None:
            return None, None
        for entry in self.entries:
            if entry.tier_cells == tier.name_cells and entry.mode == mode:
                return tier, entry
        return tier, None

    def obstacles(self, session: Fingerprint, mode: Mode) -> list[Difference]:
        """Return what keeps the table from applying to a session, beyond what it declares.

        Of the engine the release counts; a label behind ``+`` names a build and is only recorded.
        """
        differing = compare(self.fingerprint, session, mode)
        measured, here = (text.partition("+")[0] for text in (self.engine_version, __version__))
        if measured != here:
            differing.append(Difference(field="engine", table=measured, session=here))
        declared = {(item.field, item.value) for item in self.declarations}
        return [item for item in differing if (item.field, item.session) not in declared]

    @property
    def documents(self) -> frozenset[str] | None:
        """Return the SHA-256 of the documents that it was chosen on, None where it names none."""
        named = self.provenance.get(DOCUMENTS)
        return frozenset(named.split()) if isinstance(named, str) and named.strip() else None

    def describe_tiers(self) -> str:
        """Return the needs that the table covers, in words."""
        if not self.tiers:
            return "no need at all"
        return ", ".join(f"{tier.lower_cells + 1}-{tier.upper_cells}" for tier in self.tiers)
