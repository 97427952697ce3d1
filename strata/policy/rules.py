"""Choose the ring of a session: `fixed`, `depth`, `adapt`, `learned`.

This runs once, before the arena is laid out, and reads no clock, file or device, so that the same
request gets the same ring in a session, in `strata policy explain` and in the backtest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strata.errors import BudgetError
from strata.policy.decision import Gain, Refusal, RingDecision
from strata.policy.learned import consult_table
from strata.policy.request import PolicyName, RingRequest, round_down, round_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Hold the limits of a choice, all in whole pages: minimum <= floor <= cap.

    `whole_cells` is the max context. A context shorter than the minimum ring needs no more than
    itself, so the minimum here is never above it.
    """

    minimum_cells: int
    floor_cells: int
    cap_cells: int
    whole_cells: int
    cap_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Hold what one rule chose."""

    ring_cells: int
    reason: str
    log_line: str | None = None
    warnings: tuple[str, ...] = ()
    tier: str | None = None
    gain: Gain | None = None
    table: str | None = None
    refused: Refusal | None = None


def choose_ring(request: RingRequest) -> RingDecision:
    """Return the ring for `request`.

    Raises BudgetError where the chosen ring does not fit the memory budget even beside the
    fewest expert slots.
    """
    bounds, warnings = _bounds(request)
    policy: str = request.policy
    if request.kv_resident == 0:
        policy = "none"
        choice = _whole(request, bounds)
    else:
        choice = _RULES[request.policy](request, bounds)
    pool = min(choice.ring_cells, bounds.whole_cells)
    _check_budget(request, bounds, pool)
    return RingDecision(
        ring_cells=choice.ring_cells,
        pool_cells=pool,
        cap_cells=bounds.cap_cells,
        floor_cells=bounds.floor_cells,
        minimum_cells=bounds.minimum_cells,
        need_cells=request.need_cells,
        policy=policy,
        reason=choice.reason,
        log_line=choice.log_line or f"KV ring {policy}: {choice.ring_cells} ({choice.reason})",
        warnings=(*warnings, *choice.warnings),
        tier=choice.tier,
        gain=choice.gain,
        table=choice.table,
        refused=choice.refused,
    )


def _bounds(request: RingRequest) -> tuple[Bounds, list[str]]:
    page = request.page_cells
    whole = round_up(request.max_context_cells, page)
    minimum = min(round_up(request.minimum_cells, page), whole)
    default = max(minimum, round_down(request.default_cells, page))
    cap, reason = _cap(request, whole, default)
    warnings: list[str] = []
    if cap < minimum:
        if request.kv_resident:
            warnings.append(
                f"--kv-resident {request.kv_resident} is below the minimum ring of {minimum} "
                "cells, which one row's reads need; raised to it"
            )
        cap = minimum
    bounds = Bounds(
        minimum_cells=minimum,
        floor_cells=min(default, cap),
        cap_cells=cap,
        whole_cells=whole,
        cap_reason=reason,
    )
    return bounds, warnings


def _cap(request: RingRequest, whole: int, default: int) -> tuple[int, str]:
    """Return the largest ring a policy may choose, before the minimum, and where it comes from."""
    if request.kv_resident == 0:
        return whole, "the whole context"
    if request.kv_resident is not None:
        return round_down(request.kv_resident, request.page_cells), "the cap"
    if request.policy == "fixed":
        if _fits(request.fits_all_experts_cells, request, whole):
            return whole, "the whole context fits beside every expert"
        return default, "the whole context does not fit beside every expert: the default ring"
    if _fits(request.fits_few_experts_cells, request, whole):
        return whole, "the whole context"
    assert request.fits_few_experts_cells is not None
    return (
        round_down(request.fits_few_experts_cells, request.page_cells),
        "the largest ring beside the fewest expert slots",
    )


def _fits(limit_cells: int | None, request: RingRequest, pool_cells: int) -> bool:
    return limit_cells is None or limit_cells >= min(pool_cells, request.max_context_cells)


def _check_budget(request: RingRequest, bounds: Bounds, pool_cells: int) -> None:
    most = request.fits_few_experts_cells
    if most is None or _fits(most, request, pool_cells):
        return
    if most < bounds.minimum_cells:
        raise BudgetError(
            f"the memory budget leaves {max(most, 0)} cells for the ring beside the fewest expert "
            f"slots, and this session needs at least {bounds.minimum_cells}; raise --vram-budget"
        )
    raise BudgetError(
        f"a ring of {pool_cells} cells does not fit the memory budget: beside the fewest expert "
        f"slots {most} cells do; lower --kv-resident or raise --vram-budget"
    )


def _whole(request: RingRequest, bounds: Bounds) -> Choice:
    warnings: tuple[str, ...] = ()
    if request.policy == "learned":
        warnings = (
            "--kv-resident 0 keeps the whole context resident, so the learned policy that was "
            "asked for is not consulted",
        )
    reason = "the whole context is resident: --kv-resident 0"
    return Choice(ring_cells=bounds.whole_cells, reason=reason, warnings=warnings)


def _fixed(request: RingRequest, bounds: Bounds) -> Choice:
    return Choice(ring_cells=bounds.cap_cells, reason=bounds.cap_reason)


def _depth(request: RingRequest, bounds: Bounds) -> Choice:
    need = request.need_cells
    if need >= bounds.cap_cells:
        return Choice(ring_cells=bounds.cap_cells, reason=f"need {need} reaches the cap")
    if need <= bounds.floor_cells:
        return Choice(ring_cells=bounds.floor_cells, reason=f"need {need} is within the floor")
    ring = round_up(need, request.page_cells)
    return Choice(ring_cells=ring, reason=f"grown to need {need}")


def _adapt(request: RingRequest, bounds: Bounds) -> Choice:
    need, cap = request.need_cells, bounds.cap_cells
    if need >= cap:
        return Choice(ring_cells=cap, reason=f"need {need} reaches the cap {cap}")
    ring = bounds.floor_cells
    line = f"KV ring adaptive: {cap} -> {ring}" if ring != cap else None
    reason = f"need {need} is below the cap {cap}: the floor"
    return Choice(ring_cells=ring, reason=reason, log_line=line)


def _learned(request: RingRequest, bounds: Bounds) -> Choice:
    advice = consult_table(request, default_cells=bounds.floor_cells)
    advised = round_down(advice.ring_cells, request.page_cells)
    ring = min(max(advised, bounds.minimum_cells), bounds.cap_cells)
    reason, gain = advice.reason, advice.gain
    if min(ring, bounds.whole_cells) != min(advised, bounds.whole_cells):
        limit = "minimum" if ring > advised else "cap"
        reason = f"{reason}; the table's {advised} is held to the {limit}"
        gain = None
    words = _learned_words(reason, gain, advice.table, request.taken)
    return Choice(
        ring_cells=ring,
        reason=reason,
        log_line=f"KV ring learned: {ring} ({words})",
        warnings=advice.warnings,
        tier=advice.tier,
        gain=gain,
        table=advice.table,
        refused=advice.refused,
    )


def _learned_words(reason: str, gain: Gain | None, table: str | None, taken: str) -> str:
    words = [reason]
    if gain is not None:
        words.append(f"expected gain {gain}")
    if table is not None:
        words.append(f"table {table}")
        if taken:
            words.append(f"which sets {taken}")
    return ", ".join(words)


_RULES: dict[PolicyName, Callable[[RingRequest, Bounds], Choice]] = {
    "fixed": _fixed,
    "depth": _depth,
    "adapt": _adapt,
    "learned": _learned,
}
