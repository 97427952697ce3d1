"""Ask what each policy would have chosen on published rows, and what exactly that choice measured.

A row compares an arm's ring with a control's. A policy's choice scores 0 where it is the
control's ring; the row's published percentage where it is the arm's ring, or where the row was
itself a run of that policy; and "not measured" anywhere else, never the nearest ring. The
published percentage is authoritative: it is not always the ratio of the two printed medians.

On the seed figures the reversal at 32K with the drafter on came from the arm that ran `depth`, with
a published ring of 49,152. `fixed` takes that very ring, so its -9.1 % is the row's figure as
recorded; `depth` itself would take 33,040 there and scores the same only because the row was its
own run. The source says both of that arm ("just past the prompt" and 49,152).

The learned column is judged on the rows that it was fitted to and is marked so; beside it stands
the choice of a table fitted without the row, which is the honest one and may well be "default".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from strata.config import DEFAULT_MAX_NEW, PAGE_CELLS, Selection
from strata.models.backtest_rows import Row
from strata.models.direct import PUBLISHED, DirectFit, fit_direct
from strata.policy.decision import RingDecision
from strata.policy.request import PolicyName, RingRequest, minimum_ring_cells, need_cells
from strata.policy.rules import choose_ring
from strata.policy.table import PolicyTable

Basis = Literal["control's ring", "arm's ring", "row's own rule", "not measured"]

RULES: tuple[PolicyName, ...] = ("fixed", "depth", "adapt")
LEARNED = "learned (in sample)"
LEARNED_LEFT_OUT = "learned (row left out)"
COLUMNS = (*RULES, LEARNED, LEARNED_LEFT_OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The session that every policy is asked about, as the command line gives it."""

    kv_resident_cells: int | None
    ring_default_cells: int
    max_new: int = DEFAULT_MAX_NEW


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one policy would have chosen at one row, and what that measured."""

    ring_cells: int
    basis: Basis
    delta_pct: float | None

    def __str__(self) -> str:
        if self.delta_pct is None:
            return "not measured"
        if self.basis == "control's ring":
            return "0 % (control's ring)"
        own = ", its own run" if self.basis == "row's own rule" else ""
        return f"{self.delta_pct:+.1f} % (as recorded{own})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """One published row with the outcome of every policy, keyed by COLUMNS."""

    row: Row
    need_cells: int
    outcomes: dict[str, Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """A whole backtest: its settings, every row, and the estimate behind the learned column."""

    settings: Settings
    results: tuple[RowResult, ...]
    fit: DirectFit


def backtest(rows: Sequence[Row], settings: Settings) -> Backtest:
    """Return what every policy would have chosen at every row, and what that measured."""
    default, tiers = settings.ring_default_cells, {row.tier_cells for row in rows}
    fit = fit_direct(rows, default, tiers)
    results = []
    for row in rows:
        left_out = fit_direct([other for other in rows if other is not row], default, tiers)
        decisions = {rule: _decide(row, rule, settings) for rule in RULES}
        outcomes: dict[str, Outcome] = {
            rule: outcome(row, rule, decision) for rule, decision in decisions.items()
        }
        outcomes[LEARNED] = outcome(row, "learned", _decide(row, "learned", settings, fit.table))
        outcomes[LEARNED_LEFT_OUT] = outcome(
            row, "learned", _decide(row, "learned", settings, left_out.table)
        )
        need = decisions["fixed"].need_cells
        results.append(RowResult(row=row, need_cells=need, outcomes=outcomes))
    return Backtest(settings=settings, results=tuple(results), fit=fit)


def outcome(row: Row, policy: str, decision: RingDecision) -> Outcome:
    """Return what `row` measured of the ring in `decision`, the first rule that fits."""
    ring = decision.ring_cells
    if ring == row.ring_control_cells:
        return Outcome(ring_cells=ring, basis="control's ring", delta_pct=0.0)
    if row.delta_pct is not None and ring == row.ring_arm_cells:
        return Outcome(ring_cells=ring, basis="arm's ring", delta_pct=row.delta_pct)
    if row.delta_pct is not None and row.rule == policy:
        return Outcome(ring_cells=ring, basis="row's own rule", delta_pct=row.delta_pct)
    return Outcome(ring_cells=ring, basis="not measured", delta_pct=None)


def _decide(
    row: Row, policy: PolicyName, settings: Settings, table: PolicyTable | None = None
) -> RingDecision:
    """Return the decision of the very code that a session runs."""
    need = need_cells(prompt_cells=row.tier_cells, max_new=settings.max_new, page_cells=PAGE_CELLS)
    return choose_ring(
        RingRequest(
            policy=policy,
            need_cells=need,
            max_context_cells=need,
            page_cells=PAGE_CELLS,
            minimum_cells=minimum_ring_cells(Selection(), need_cells=need, page_cells=PAGE_CELLS),
            default_cells=settings.ring_default_cells,
            kv_resident=settings.kv_resident_cells,
            mode=row.mode,
            fingerprint=PUBLISHED,
            table=table,
            table_origin="the direct estimate",
        )
    )
