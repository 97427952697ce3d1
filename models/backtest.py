"""Ask what each policy would have chosen on published rows, and what exactly that choice measured.

A row compares an arm's ring with a control's. A policy's choice scores 0 where it is the
control's ring; the row's published percentage where the row was itself a run of that policy; 0
where it reserves the control's pool and the percentage where it reserves the arm's; and "not
measured" anywhere else, never the nearest ring. Rings past the whole context reserve one pool, the
context: at a short prompt they are one ring under several names. The published percentage is
authoritative: it is not always the ratio of the two printed medians.

On the seed figures the reversal at 32K with the drafter on came from the arm that ran `depth`, with
a published ring of 49,152. `fixed` takes that very ring, and `depth` would take 33,040 there, the
whole context, which is the pool of either: both score the row's -9.1 %. The source says both of
that arm ("just past the prompt" and 49,152).

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

Basis = Literal["control's ring", "control's pool", "arm's ring", "row's own rule", "not measured"]

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
        if self.basis in ("control's ring", "control's pool"):
            return f"0 % ({self.basis})"
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

    def pool(tier_cells: int, ring_cells: int) -> int:
        return min(ring_cells, _need(tier_cells, settings))

    fit = fit_direct(rows, default, tiers, pool)
    results = []
    for row in rows:
        left_out = fit_direct([other for other in rows if other is not row], default, tiers, pool)
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
    ring, context = decision.ring_cells, decision.need_cells
    control, arm = row.ring_control_cells, row.ring_arm_cells
    measured = row.delta_pct is not None
    bases: list[tuple[Basis, bool]] = [
        ("control's ring", ring == control),
        ("arm's ring", measured and row.rule == policy and ring == arm),
        ("row's own rule", measured and row.rule == policy),
        ("control's pool", min(ring, context) == min(control, context)),
        ("arm's ring", measured and min(ring, context) == min(arm, context)),
    ]
    basis: Basis = next((name for name, fits in bases if fits), "not measured")
    scores = {"control's ring": 0.0, "control's pool": 0.0, "not measured": None}
    return Outcome(ring_cells=ring, basis=basis, delta_pct=scores.get(basis, row.delta_pct))


def _need(tier_cells: int, settings: Settings) -> int:
    return need_cells(prompt_cells=tier_cells, max_new=settings.max_new, page_cells=PAGE_CELLS)


def _decide(
    row: Row, policy: PolicyName, settings: Settings, table: PolicyTable | None = None
) -> RingDecision:
    """Return the decision of the very code that a session runs."""
    need = _need(row.tier_cells, settings)
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
