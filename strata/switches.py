"""Turn a session's switches into its drafts, what it must hold, and its ring.

All of it before any memory is reserved; what cannot be is refused by the switch's name.
"""

from __future__ import annotations

from collections.abc import Mapping

from strata.config import (
    DEFAULT_PREFETCH,
    DEFAULT_RING_CELLS,
    MAX_ROWS,
    SessionConfig,
    is_whole,
)
from strata.device import device_name
from strata.errors import UsageError
from strata.layout import Demand
from strata.lm.model import LanguageModel
from strata.policy import (
    Fingerprint,
    Mode,
    RingDecision,
    RingRequest,
    choose_ring,
    minimum_ring_cells,
    need_cells,
    resolve_policy,
)


def resolve_drafts(model: LanguageModel, config: SessionConfig) -> int | str:
    """Return the drafts a round, or "auto"; raise UsageError for switches that cannot be."""
    config.check()
    drafts = config.spec.drafts
    if drafts is None:
        return 1 if model.has_mtp else 0
    if drafts and not model.has_mtp:
        raise UsageError(f"--spec: {model.folder} has no MTP layer to draft with; use --spec 0")
    return drafts


def session_demand(
    model: LanguageModel,
    config: SessionConfig,
    drafts: int | str,
    *,
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
    return Demand(
        model=model,
        need=need,
        max_context=max_context,
        page_cells=page,
        selection=config.kv.selection,
        drafting=bool(drafts),
        rows=MAX_ROWS if drafts == "auto" else 1 + int(drafts),
        window_cells=config.spec.window_cells,
        victims=config.kv.victims,
        budget_bytes=config.vram_budget_bytes,
        prefetch=config.prefetch or DEFAULT_PREFETCH,
    )


def decide_ring(
    model: LanguageModel,
    config: SessionConfig,
    demand: Demand,
    drafts: int | str,
    environ: Mapping[str, str],
) -> tuple[RingDecision, list[str]]:
    """Return the ring that the policy chooses, and what a user should be warned of.

    Raises BudgetError where not even the minimum ring fits, TableError for a policy table that was
    named and is no good, UsageError for a policy that there is not.
    """
    minimum = minimum_ring_cells(
        config.kv.selection, need_cells=demand.need, page_cells=demand.page_cells
    )
    demand.check(minimum)
    few, every = (demand.largest_ring(n) for n in (demand.fewest_experts, demand.num_experts))
    default = config.kv.ring_default_cells
    if default is None:
        default = DEFAULT_RING_CELLS[model.device.type]
    fingerprint = _fingerprint(model, config, drafts)
    mode: Mode = "on" if drafts else "off"
    resolved = resolve_policy(
        policy=config.policy,
        table=config.table,
        environ=environ,
        fingerprint=fingerprint,
        mode=mode,
    )
    decision = choose_ring(
        RingRequest(
            policy=resolved.policy,
            need_cells=demand.need,
            max_context_cells=demand.max_context,
            page_cells=demand.page_cells,
            minimum_cells=minimum,
            default_cells=default if few is None else min(default, few),
            kv_resident=config.kv.resident_cells,
            fits_all_experts_cells=every,
            fits_few_experts_cells=few,
            mode=mode,
            fingerprint=fingerprint,
            table=resolved.table,
            table_origin=resolved.table_origin,
        )
    )
    warnings = [*resolved.warnings, *decision.warnings]
    if decision.gain is not None and drafts and config.spec.min_p > 0:
        warnings.append(
            f"policy table {decision.table} was measured without --spec-min-p; "
            "its gain may not hold"
        )
    if decision.gain is not None and config.prefetch not in (None, DEFAULT_PREFETCH):
        warnings.append(
            f"policy table {decision.table} was measured with --prefetch {DEFAULT_PREFETCH}; "
            "its gain may not hold"
        )
    return decision, warnings


def _fingerprint(model: LanguageModel, config: SessionConfig, drafts: int | str) -> Fingerprint:
    window = config.spec.window_cells
    return Fingerprint(
        device=device_name(model.device),
        model_hash=model.model_hash,
        kv_dtype=str(model.dtype).removeprefix("torch."),
        page_cells=config.kv.page_cells,
        select=str(config.kv.selection),
        spec=drafts if drafts else 1,  # type: ignore[arg-type]
        mtp_window="auto" if window is None else window,
        victims=config.kv.victims,
        vram_budget_bytes=config.vram_budget_bytes,
        context="own" if config.max_context_cells is None else config.max_context_cells,
    )
