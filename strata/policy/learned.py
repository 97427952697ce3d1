"""Ask a policy table for a ring, and say why where it has no answer."""

from __future__ import annotations

from dataclasses import dataclass

from strata.policy.decision import NOT_OBEYED, Gain, Refusal
from strata.policy.request import RingRequest, round_down, round_up
from strata.policy.table import PolicyTable
from strata.policy.tiers import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Hold what a table says; `ring_cells` is the default ring wherever it has no better one.

    `table` is named where it was obeyed, a better ring or not.
    """

    ring_cells: int
    reason: str
    warnings: tuple[str, ...] = ()
    tier: str | None = None
    gain: Gain | None = None
    table: str | None = None
    refused: Refusal | None = None


def consult_table(request: RingRequest, *, default_cells: int) -> Advice:
    """Return the table's ring for the request, before the session's own bounds.

    `default_cells` is the ring that a session without a policy would get. A table whose
    conditions are not the session's, or that has measured no such need, gives the default ring
    and one warning that names the difference.
    """
    table = request.table
    if request.refused is not None:
        return _refuse(request, request.refused, default_cells)
    if table is None:
        return _no_table(request, default_cells)
    if difference := _difference(table, request):
        refusal = Refusal(reason=NOT_OBEYED, clause=f"does not apply: {difference}")
        return _refuse(request, refusal, default_cells)
    return _apply(table, request, default_cells)


def _refuse(
    request: RingRequest, refusal: Refusal, default_cells: int, tier: Tier | None = None
) -> Advice:
    return Advice(
        ring_cells=default_cells,
        reason=refusal.reason,
        warnings=(
            f"policy table {request.table_origin} {refusal.clause}; "
            f"the default ring of {default_cells} cells is used",
        ),
        tier=str(tier) if tier else None,
        refused=refusal,
    )


def _apply(table: PolicyTable, request: RingRequest, default_cells: int) -> Advice:
    drafter = f"drafter {request.mode}"
    tier, entry = table.lookup(request.need_cells, request.mode)
    if tier is None or entry is None:
        missing = (
            f"need {request.need_cells} is outside its tiers ({table.describe_tiers()})"
            if tier is None
            else f"it has no entry for tier {tier} with the {drafter}"
        )
        refusal = Refusal(
            reason="no evidence: the default ring", clause=f"has no evidence here: {missing}"
        )
        return _refuse(request, refusal, default_cells, tier)
    where = f"tier {tier}, {drafter}" + (", predicted" if entry.predicted else "")
    if entry.verdict != "better":
        return Advice(
            ring_cells=default_cells,
            reason=f"{where}, {entry.verdict}: the default ring",
            tier=str(tier),
            table=request.table_origin,
        )
    return Advice(
        ring_cells=entry.ring_cells,
        reason=where,
        tier=str(tier),
        gain=entry.gain,
        table=request.table_origin,
    )


def _no_table(request: RingRequest, default_cells: int) -> Advice:
    looked = f" in {request.table_origin}" if request.table_origin else ""
    return Advice(
        ring_cells=default_cells,
        reason="no table: the default ring",
        warnings=(
            f"the learned policy found no table for these conditions{looked}; the default ring "
            f"of {default_cells} cells is used; measure one with strata tune or name one with "
            "--kv-ring-table",
        ),
    )


def _difference(table: PolicyTable, request: RingRequest) -> str:
    """Return what keeps the table from applying, in words; empty where nothing does.

    A gain is over the default ring that the table was measured against, so a session with
    another default ring has no evidence either. Two defaults that hold the whole context are one.
    """
    if request.fingerprint is None:
        return "the conditions of this session are not known"
    clauses = [str(item) for item in table.obstacles(request.fingerprint, request.mode)]
    here, measured = (
        _default_pages(cells, request)
        for cells in (request.default_cells, table.default_ring_cells)
    )
    if here != measured:
        clauses.append(
            f"default_ring is {table.default_ring_cells} in the table and "
            f"{request.default_cells} here"
        )
    return "; ".join(clauses)


def _default_pages(cells: int, request: RingRequest) -> int:
    """Return the pages that a default ring of `cells` reserves in this session."""
    page = request.page_cells
    reserved = max(round_down(cells, page), round_up(request.minimum_cells, page))
    return min(reserved, round_up(request.max_context_cells, page)) // page
