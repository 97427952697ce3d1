"""Turn a study's trials into the policy table that a session consults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import numpy as np
import pandas as pd

from strata.errors import UsageError
from strata.models.decide import Entry, Rule, decide
from strata.models.samples import Samples
from strata.policy.fingerprint import Fingerprint, Mode
from strata.policy.table import Entry as TableEntry
from strata.policy.table import PolicyTable, Verdict, decision_key
from strata.policy.tiers import Tier

BOUNDLESS_LOG = 30.0
"""A bound further out than e to this power says nothing, and floats cannot tell it from -1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """What a table must say that its trials do not: conditions, rule and origin."""

    fingerprint: Fingerprint
    tiers: tuple[Tier, ...]
    default_ring_cells: int
    margin_ratio: float = 0.01
    confidence: float = 0.95
    no_regression: bool = False
    engine_version: str
    engine_commit: str | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    samples: Samples | None = None
    """What the plan asked for; None takes what the trials name."""
    created: str = ""
    """ISO 8601 in UTC; empty takes the time of the call."""


def build_table(frame: pd.DataFrame, facts: TableFacts) -> PolicyTable:
    """Decide every entry from `frame` and return the table, `facts` around it.

    Each tier of `facts` gets an entry for each mode that was swept; one that was never measured
    says ``no evidence``. How it was chosen and corrected, and why a promising ring was refused,
    stands in the provenance under ``decision_TIER_MODE``. Raises UsageError when the frame is not
    usable or measured a tier that `facts` does not name.
    """
    rule = Rule(
        margin_ratio=facts.margin_ratio,
        alpha=1 - facts.confidence,
        no_regression=facts.no_regression,
    )
    found = decide(frame, rule, facts.default_ring_cells, facts.samples)
    decided = {(entry.tier_cells, entry.mode): entry for entry in found}
    names = [tier.name_cells for tier in facts.tiers]
    strangers = sorted({tier for tier, _ in decided} - set(names))
    if strangers:
        raise UsageError(f"the trials measured tier {strangers[0]}, which the table lacks: {names}")
    modes = sorted({mode for _, mode in decided})
    entries = tuple(
        _table_entry(decided.get((name, mode)), name, mode, facts)
        for name in names
        for mode in modes
    )
    notes = {decision_key(*place): entry.note for place, entry in decided.items()}
    return PolicyTable(
        created=facts.created or datetime.now(UTC).isoformat(timespec="seconds"),
        engine_version=facts.engine_version,
        engine_commit=facts.engine_commit,
        fingerprint=facts.fingerprint,
        environment=dict(facts.environment),
        provenance={**facts.provenance, **notes},
        default_ring_cells=facts.default_ring_cells,
        margin_ratio=facts.margin_ratio,
        tiers=facts.tiers,
        entries=entries,
    )


def _table_entry(entry: Entry | None, tier_cells: int, mode: str, facts: TableFacts) -> TableEntry:
    best = entry.best if entry is not None else None
    if entry is None or best is None:
        unmeasured = "undecided" if facts.samples and facts.samples.is_partial else "no evidence"
        return TableEntry(
            tier_cells=tier_cells,
            mode=cast(Mode, mode),
            ring_cells=facts.default_ring_cells,
            verdict=cast(Verdict, unmeasured if entry is None else entry.verdict),
            confidence=facts.confidence,
        )
    return TableEntry(
        tier_cells=tier_cells,
        mode=cast(Mode, mode),
        ring_cells=entry.ring_cells,
        verdict=cast(Verdict, entry.verdict),
        effect_ratio=float(np.expm1(best.mean)),
        lower_ratio=_finite_ratio(best.lower),
        upper_ratio=_finite_ratio(best.upper),
        confidence=facts.confidence,
        pairs=best.pairs,
        passages=best.passages,
    )


def _finite_ratio(bound: float) -> float | None:
    """Return a log bound as a ratio minus one, None where so few passages bound nothing."""
    return float(np.expm1(bound)) if abs(bound) < BOUNDLESS_LOG else None
