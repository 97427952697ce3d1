"""Create a session: decide the ring, lay out memory, build the drafter; then generate.

The ring is chosen before any memory is reserved. What was decided, why, and what it costs are
on the session: `decision`, `ledger`, `warnings`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from strata.arena import Arena, outside_bytes
from strata.captured import CapturedEngine, capture_obstacle
from strata.config import (
    DEFAULT_PREFETCH,
    DEFAULT_RING_CELLS,
    MAX_DRAFTS,
    MAX_ROWS,
    SamplingParams,
    SessionConfig,
)
from strata.device import device_name
from strata.draft import Drafter, MtpDrafter, NullDrafter
from strata.draft.adaptive import AutoDrafts, DraftCount, FixedDrafts
from strata.draft.ring import DrafterRing
from strata.engine import Engine
from strata.errors import UsageError
from strata.experts.cache import ExpertCache, PooledExperts, ResidentExperts
from strata.generation import Collector, Generation
from strata.kv.cache import KvCache
from strata.layout import Demand
from strata.lm.model import LanguageModel
from strata.parked import Parked
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
from strata.prompt import PromptRunner
from strata.sampling import Sampler


@dataclass(frozen=True, slots=True)
class PrefillStats:
    """What a prompt took."""

    seconds: float
    tokens: int


class Session:
    """One sequence with its own ring, K/V store and drafter."""

    def __init__(
        self,
        engine: Engine,
        arena: Arena,
        decision: RingDecision,
        warnings: list[str],
        drafts: int | str,
        min_p: float,
        window_cells: int,
    ) -> None:
        self.engine = engine
        self.decision = decision
        self.warnings = warnings
        self.drafts = drafts
        self.mtp_window_cells = window_cells
        self._arena = arena
        self._min_p = min_p
        self._closed = False

    @property
    def model(self) -> LanguageModel:
        """Return the model that the session runs."""
        return self.engine.model

    @property
    def ledger(self) -> dict[str, int]:
        """Return device bytes by name: the model's weights, then what the session carved."""
        ledger = {"weights": self.model.weights.device_bytes}
        if isinstance(self.engine.experts, ResidentExperts):
            experts = self.model.device_experts()
            ledger["experts"] = experts.numel() * experts.element_size()
        ledger |= self._arena.ledger
        rest = {
            "allocator": outside_bytes(self.model.device),
            "unused": self._arena.size_bytes - self._arena.used_bytes,
        }
        return ledger | {name: size for name, size in rest.items() if size}

    @property
    def expert_slots(self) -> int:
        """Return the experts that the device holds at once."""
        return self.engine.experts.slots

    def prefill(
        self, ids: list[int], on_progress: Callable[[int], None] | None = None
    ) -> PrefillStats:
        """Run the prompt `ids`; `on_progress` is told the rows of each chunk.

        Raises UsageError for a prompt that is longer than the session was created for.
        """
        self._check_room(len(ids), "a prompt")
        start = time.perf_counter()
        self.engine.prefill(ids, on_progress)
        _synchronise(self.model.device)
        return PrefillStats(time.perf_counter() - start, len(ids))

    def park(self) -> Parked:
        """Return the state behind the prompt, to be restored into other sessions."""
        return self.engine.park()

    def restore(self, parked: Parked) -> None:
        """Start from `parked` instead of a prompt; raise UsageError where it does not fit."""
        model, dtype = self.model, parked.cells.dtype
        if (parked.model_hash, dtype) != (model.model_hash, model.dtype):
            raise UsageError(
                f"the prompt was parked by model {parked.model_hash[:12]} in {dtype}, and this "
                f"session runs {model.model_hash[:12]} in {model.dtype}; prefill it here"
            )
        self._check_room(parked.prompt_cells, "a parked prompt")
        if isinstance(self.engine.drafter, MtpDrafter) and parked.drafter_cells is None:
            raise UsageError("the parked session did not draft, and this one does")
        self.engine.restore(parked)

    def generate(
        self, params: SamplingParams, on_text: Callable[[str], None] | None = None
    ) -> Generation:
        """Continue the prompt; `on_text` is given text as it becomes certain.

        KeyboardInterrupt ends the generation and keeps what it has (`stopped` says so). A second
        continuation follows `rewind`. Raises UsageError for more new tokens than the session
        has room for.
        """
        engine, sampler = self.engine, Sampler(params)
        self._check_room(engine.kv.committed + params.max_new, "prompt and new tokens")
        collector = Collector(params, self.model.tokenizer, on_text)
        out = collector.out
        start = time.perf_counter()
        kv_before, experts_before = engine.kv_counters(), engine.expert_counters()
        try:
            self._run_rounds(sampler, collector)
            collector.finish()
        except KeyboardInterrupt:
            out.stopped = "interrupted"
            collector.finish()
        finally:  # whatever ended it may have left a round under way
            engine.discard()
        if out.times_s:
            out.first_token_s = out.times_s[0] - start
        out.kv = engine.kv_counters() - kv_before
        out.experts = engine.expert_counters() - experts_before
        return out

    def _run_rounds(self, sampler: Sampler, collector: Collector) -> None:
        """Draw tokens until one ends the continuation, rounds launched as early as may be."""
        engine, out = self.engine, collector.out
        count = _draft_count(self.drafts, self.model.device)
        # Refused drafts are all made: what stops early would set the limit of those that count.
        min_p = 0.0 if engine.refuse_drafts else self._min_p
        token, drafts = engine.first_token(sampler), count.next()
        engine.prepare(drafts, min_p, at_most=collector.room - 2)
        going, ahead = collector.take([token]), False
        while going:
            # A round gives one token more than it drafts.
            if not ahead:
                engine.launch(sampler, drafts, min_p, at_most=collector.room - 1)
            ahead, following = False, count.foresee(drafts)
            if following is not None and following < collector.room - drafts - 1:
                ahead = engine.foresees(following, min_p)
                if ahead:
                    engine.launch(sampler, following, min_p, at_most=following)
            collector.catch_up()  # while a GPU is at the rounds
            done = engine.collect()
            count.learn(done.drafted, done.accepted)
            out.note_round(done.drafted, done.accepted)
            going = collector.take(done.tokens)
            drafts = count.next()

    def _check_room(self, cells: int, what: str) -> None:
        g = self.engine.kv.geometry
        if cells > g.pages * g.page_cells:
            raise UsageError(
                f"{what} of {cells} cells exceed the {g.pages * g.page_cells} that this session "
                "was created for"
            )

    def rewind(self) -> None:
        """Go back to the state right behind the prompt; the ring is seeded again."""
        self.engine.rewind()

    def close(self) -> None:
        """Give every byte back; the session cannot be used afterwards."""
        if not self._closed:
            self._closed = True
            device = self.model.device
            self.engine.close()
            del self.engine, self._arena
            if device.type == "cuda":
                # A cached block that does not fit the next session would stand beside its own.
                with torch.cuda.device(device):
                    torch.cuda.empty_cache()


def create_session(
    model: LanguageModel,
    config: SessionConfig,
    *,
    prompt_cells: int,
    max_new: int,
    environ: Mapping[str, str] = os.environ,
) -> Session:
    """Return a session for a prompt of `prompt_cells` and at most `max_new` new tokens.

    Raises UsageError for switches that cannot be, BudgetError for memory that cannot hold them,
    TableError for a policy table that was named and is no good.
    """
    drafts = _resolve_drafts(model, config)
    demand = _demand(model, config, drafts, prompt_cells, max_new)
    warnings: list[str] = []
    decision = _decide(model, config, demand, drafts, environ, warnings)
    slots = demand.most_experts(decision.pool_cells)
    arena = Arena(demand.arena_bytes(decision.pool_cells, slots), model.device)
    kv = KvCache(demand.geometry(decision.pool_cells), config.kv.victims, arena)
    experts: ExpertCache = (
        ResidentExperts(model.device_experts())
        if slots is None
        else PooledExperts(model.weights.experts, slots, arena)
    )
    window = demand.window(decision.pool_cells) if demand.drafting else 0
    drafter: Drafter = NullDrafter()
    if demand.drafting:
        g = kv.geometry
        shape = (2, g.kv_heads, g.head_dim)
        ring = DrafterRing(shape, window, g.pages * g.page_cells, model.dtype, arena)
        drafter = MtpDrafter(model, ring)
    phases = config.rounds != "reference" and model.device.type == "cuda"
    if phases and (obstacle := capture_obstacle(kv.geometry, kv.victims, model.config.group)):
        warnings.append(f"rounds are not captured as CUDA graphs: {obstacle}")
        phases = False
    idle = demand.prefetch_obstacle(decision.pool_cells, slots, phases=phases)
    if config.prefetch is not None and idle:
        warnings.append(f"--prefetch {config.prefetch} fetches nothing: {idle}")
    if not phases:
        engine = Engine(model, kv, experts, drafter)
    else:
        specs = demand.round_buffers(decision.pool_cells, slots)
        buffers = {name: arena.take("round buffers", *spec) for name, spec in specs.items()}
        capture = config.rounds == "captured"
        engine = CapturedEngine(model, kv, experts, drafter, buffers=buffers, capture=capture)
    plan = demand.prompt_plan(decision.pool_cells, slots)
    if plan is not None:
        engine.prompt = PromptRunner(model, kv, experts, plan, arena)
    return Session(engine, arena, decision, warnings, drafts, config.spec.min_p, window)


def _resolve_drafts(model: LanguageModel, config: SessionConfig) -> int | str:
    drafts = config.spec.drafts
    if not 0 <= config.spec.min_p <= 1:
        raise UsageError(f"--spec-min-p: {config.spec.min_p} is outside 0 to 1")
    if (config.spec.window_cells or 0) < 0:
        raise UsageError(
            f"--mtp-window: {config.spec.window_cells} is negative; 0 reads everything"
        )
    if drafts is None:
        return 1 if model.has_mtp else 0
    if drafts != "auto" and not 0 <= int(drafts) <= MAX_DRAFTS:
        raise UsageError(f"--spec: {drafts} is outside 0 to {MAX_DRAFTS}")
    if drafts and not model.has_mtp:
        raise UsageError(f"--spec: {model.folder} has no MTP layer to draft with; use --spec 0")
    return drafts


def _demand(
    model: LanguageModel, config: SessionConfig, drafts: int | str, prompt_cells: int, max_new: int
) -> Demand:
    page = config.kv.page_cells
    if not 1 <= page <= 1024:
        raise UsageError(f"--kv-page: {page} is outside 1 to 1024 cells")
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


def _decide(
    model: LanguageModel,
    config: SessionConfig,
    demand: Demand,
    drafts: int | str,
    environ: Mapping[str, str],
    warnings: list[str],
) -> RingDecision:
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
    warnings += [*resolved.warnings, *decision.warnings]
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
    return decision


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


def _draft_count(drafts: int | str, device: torch.device) -> DraftCount:
    return AutoDrafts(device.type) if drafts == "auto" else FixedDrafts(int(drafts))


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
