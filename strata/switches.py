"""Turn a session's switches into its drafts, what it must hold, and its ring.

All of it before any memory is reserved; what cannot be is refused by the switch's name. A session
and `strata policy explain` ask the same function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strata.config import (
    AUTO_WINDOW,
    DEFAULT_DRAFTS,
    DEFAULT_PREFETCH,
    DEFAULT_RING_CELLS,
    DEFAULT_VICTIMS,
    MAX_ROWS,
    SessionConfig,
    Window,
    is_whole,
)
from strata.device import device_name
from strata.errors import BudgetError, UsageError
from strata.layout import Demand
from strata.lm.model import LanguageModel
from strata.policy import (
    NOT_OBEYED,
    Asked,
    Fingerprint,
    FreeSwitches,
    Refusal,
    ResolvedPolicy,
    RingDecision,
    RingRequest,
    choose_ring,
    minimum_ring_cells,
    need_cells,
    resolve_policy,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """Hold what a session will be, before any memory is reserved."""

    drafts: int | str
    demand: Demand
    resolved: ResolvedPolicy
    request: RingRequest
    decision: RingDecision
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asker:
    """Hold a session's own words, to be planned with one set of free switches or another."""

    model: LanguageModel
    config: SessionConfig
    prompt_cells: int
    max_new: int
    asked: Asked
    resolved: ResolvedPolicy

    def plan(self, free: FreeSwitches, refused: Refusal | None = None) -> SessionPlan:
        """Return the plan with `free`; `refused` says why the table is not asked again."""
        demand = _demand(self.model, self.config, free, self.prompt_cells, self.max_new)
        request = self._request(demand, free, refused)
        decision = choose_ring(request)
        warnings = [*self.resolved.warnings, *decision.warnings]
        warnings += _beyond_the_table(self.config, decision, drafting=demand.drafting)
        return SessionPlan(
            drafts=free.drafts or 0,
            demand=demand,
            resolved=self.resolved,
            request=request,
            decision=decision,
            warnings=tuple(warnings),
        )

    def _request(self, demand: Demand, free: FreeSwitches, refused: Refusal | None) -> RingRequest:
        kv = self.config.kv
        minimum = minimum_ring_cells(
            kv.selection, need_cells=demand.need, page_cells=demand.page_cells
        )
        demand.check(minimum)
        few, every = (demand.largest_ring(n) for n in (demand.fewest_experts, demand.num_experts))
        default = free.ring_default_cells
        assert default is not None
        return RingRequest(
            policy=self.resolved.policy,
            need_cells=demand.need,
            max_context_cells=demand.max_context,
            page_cells=demand.page_cells,
            minimum_cells=minimum,
            default_cells=default if few is None else min(default, few),
            kv_resident=kv.resident_cells,
            fits_all_experts_cells=every,
            fits_few_experts_cells=few,
            mode=self.asked.mode,
            fingerprint=self.asked.fingerprint(free),
            table=self.resolved.table,
            table_origin=self.resolved.table_origin,
            taken=free.beyond(self.asked.own),
            refused=refused,
        )


def plan_session(
    model: LanguageModel,
    config: SessionConfig,
    *,
    prompt_cells: int,
    max_new: int,
    environ: Mapping[str, str],
) -> SessionPlan:
    """Return the drafts, the ring and the demand of a session under `config`.

    What nobody named and moves speed alone is the policy table's where one is obeyed. Raises
    UsageError for switches, a policy or sizes that cannot be, BudgetError where not even the
    minimum ring fits, TableError for a policy table that was named and is no good.
    """
    config.check()
    named, own = _named(model, config), _own(model, config)
    need = _demand(model, config, own, prompt_cells, max_new).need
    asked = Asked(conditions=_conditions(model, config), named=named, own=own, need_cells=need)
    asker = _Asker(
        model=model,
        config=config,
        prompt_cells=prompt_cells,
        max_new=max_new,
        asked=asked,
        resolved=resolve_policy(
            policy=config.policy, table=config.table, environ=environ, asked=asked
        ),
    )
    table = asker.resolved.table
    if table is None or config.kv.resident_cells == 0 or (taken := asked.under(table)) == own:
        return asker.plan(own)
    try:
        plan = asker.plan(taken)
    except BudgetError:  # nobody is refused for what nobody named
        clause = f"does not apply: {taken.beyond(own)} do not fit the memory budget"
        return asker.plan(own, Refusal(reason=NOT_OBEYED, clause=clause))
    return plan if plan.decision.table is not None else asker.plan(own, plan.decision.refused)


def _named(model: LanguageModel, config: SessionConfig) -> FreeSwitches:
    """Return what was named of the switches that a table may set; raise UsageError for drafts."""
    kv, spec = config.kv, config.spec
    if spec.drafts and not model.has_mtp:
        raise UsageError(f"--spec: {model.folder} has no MTP layer to draft with; use --spec 0")
    return FreeSwitches(
        drafts=spec.drafts if model.has_mtp else 0,
        window=None if spec.window_cells is None else Window(cells=spec.window_cells),
        victims=kv.victims,
        ring_default_cells=kv.ring_default_cells,
    )


def _own(model: LanguageModel, config: SessionConfig) -> FreeSwitches:
    """Return what a session runs with where no table says otherwise."""
    return _named(model, config).filled(
        FreeSwitches(
            drafts=DEFAULT_DRAFTS,
            window=AUTO_WINDOW,
            victims=DEFAULT_VICTIMS,
            ring_default_cells=DEFAULT_RING_CELLS[model.device.type],
        )
    )


def _demand(
    model: LanguageModel,
    config: SessionConfig,
    free: FreeSwitches,
    prompt_cells: int,
    max_new: int,
) -> Demand:
    """Return what a session must hold whatever its ring.

    Raises UsageError for sizes that model or switches do not allow.
    """
    page = config.kv.page_cells
    for name, cells in (("prompt_cells", prompt_cells), ("max_new", max_new)):
        if not is_whole(cells):
            raise UsageError(f"{name}: {cells!r} is not a whole number")
    prompt_cells, max_new = int(prompt_cells), int(max_new)
    if max_new < 1:
        raise UsageError(f"--max-new: {max_new} is less than 1")
    if prompt_cells < 1:
        raise UsageError("the prompt is empty; give at least one token")
    positions = model.config.max_positions
    if prompt_cells + max_new > positions:
        raise UsageError(
            f"a prompt of {prompt_cells} and {max_new} new tokens exceed the model's "
            f"{positions} positions; shorten the prompt or --max-new"
        )
    need = need_cells(prompt_cells=prompt_cells, max_new=max_new, page_cells=page)
    max_context = need if config.max_context_cells is None else config.max_context_cells
    if max_context < need:
        raise UsageError(f"--max-context: {max_context} cells are fewer than the {need} needed")
    if max_context > max(need, positions):
        raise UsageError(
            f"--max-context: {max_context} cells are more than the model's {positions} positions"
        )
    assert free.window is not None
    assert free.victims is not None
    return Demand(
        model=model,
        need=need,
        max_context=max_context,
        page_cells=page,
        selection=config.kv.selection,
        drafting=bool(free.drafts),
        rows=MAX_ROWS if free.drafts == "auto" else 1 + int(free.drafts or 0),
        window_rule=free.window,
        victims=free.victims,
        budget_bytes=config.vram_budget_bytes,
        prefetch=config.prefetch or DEFAULT_PREFETCH,
    )


def _conditions(model: LanguageModel, config: SessionConfig) -> Fingerprint:
    return Fingerprint(
        device=device_name(model.device),
        model_hash=model.model_hash,
        kv_dtype=str(model.dtype).removeprefix("torch."),
        page_cells=config.kv.page_cells,
        select=str(config.kv.selection),
        vram_budget_bytes=config.vram_budget_bytes,
        context="own" if config.max_context_cells is None else config.max_context_cells,
    )


def _beyond_the_table(
    config: SessionConfig, decision: RingDecision, *, drafting: bool
) -> list[str]:
    """Return a warning for each switch that no table is measured with, where one is obeyed."""
    if decision.gain is None:
        return []
    warnings = []
    if drafting and config.spec.min_p > 0:
        warnings.append(
            f"policy table {decision.table} was measured without --spec-min-p; "
            "its gain may not hold"
        )
    if config.prefetch not in (None, DEFAULT_PREFETCH):
        warnings.append(
            f"policy table {decision.table} was measured with --prefetch {DEFAULT_PREFETCH}; "
            "its gain may not hold"
        )
    return warnings
