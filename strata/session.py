"""Create a session: decide the ring, lay out memory, build the drafter; then generate.

The ring is chosen before any memory is reserved. What was decided, why, and what it costs are
on the session: `decision`, `ledger`, `warnings`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from strata.arena import Arena, outside_bytes
from strata.captured import CapturedEngine, capture_obstacle
from strata.config import SamplingParams, SessionConfig
from strata.draft import Drafter, MtpDrafter, NullDrafter
from strata.draft.adaptive import AutoDrafts, DraftCount, FixedDrafts
from strata.draft.ring import DrafterRing
from strata.engine import Engine
from strata.errors import NotFiniteError, OrderError, UsageError
from strata.experts.cache import ExpertCache, PooledExperts, ResidentExperts
from strata.generation import Collector, Generation
from strata.kv.cache import KvCache
from strata.lm.model import LanguageModel
from strata.parked import Parked
from strata.policy import RingDecision
from strata.prompt import PromptRunner
from strata.sampling import Sampler
from strata.switches import plan_session
from strata.token_ids import token_ids


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
        self._engine: Engine | None = engine
        self.decision = decision
        self.warnings = warnings
        self.drafts = drafts
        self.mtp_window_cells = window_cells
        self._arena = arena
        self._min_p = min_p

    def __enter__(self) -> Session:
        """Return itself; `close` follows when the block ends, however that is."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def engine(self) -> Engine:
        """Return what runs rounds; raise OrderError behind `close`."""
        if self._engine is None:
            raise OrderError("this session is closed; create another one")
        return self._engine

    @engine.setter
    def engine(self, engine: Engine) -> None:
        self._engine = engine

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
        self, ids: Sequence[int], on_progress: Callable[[int], None] | None = None
    ) -> PrefillStats:
        """Run the prompt `ids`, a sequence, array or tensor; `on_progress` gets rows of a chunk.

        Raises UsageError for a prompt that is empty, longer than the session was created for, or
        of ids that name no token, OrderError where the session has one already.
        """
        ids = token_ids(ids, self.model.config.vocab)
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
        has room for, OrderError without a prompt, NotFiniteError where logits are no numbers.
        """
        engine, sampler = self.engine, Sampler(params)
        params = sampler.params
        engine.check_ready()
        self._check_room(engine.kv.committed + params.max_new, "prompt and new tokens")
        first = engine.kv.committed
        collector = Collector(params, self.model.tokenizer, on_text, first=first)
        out = collector.out
        start = time.perf_counter()
        kv_before, experts_before = engine.kv_counters(), engine.expert_counters()
        try:
            self._run_rounds(sampler, collector)
            collector.finish()
        except KeyboardInterrupt:
            out.stopped = "interrupted"
            collector.finish()
        except NotFiniteError:
            collector.finish()
            raise
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
            before = len(out.tokens)
            try:
                going = collector.take(done.tokens)
            finally:  # Ctrl-C between its texts keeps what was shown
                out.note_round(done.drafted, done.accepted, len(out.tokens) - before)
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
        if self._engine is not None:
            device = self.model.device
            self._engine.close()
            self._engine = None
            del self._arena
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
    plan = plan_session(model, config, prompt_cells=prompt_cells, max_new=max_new, environ=environ)
    demand, decision = plan.demand, plan.decision
    warnings = [*model.config.warnings, *plan.warnings]
    slots = demand.most_experts(decision.pool_cells)
    arena = Arena(demand.arena_bytes(decision.pool_cells, slots), model.device)
    kv = KvCache(demand.geometry(decision.pool_cells), demand.victims, arena)
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
    prompt = demand.prompt_plan(decision.pool_cells, slots)
    if prompt is not None:
        engine.prompt = PromptRunner(model, kv, experts, prompt, arena)
    return Session(engine, arena, decision, warnings, plan.drafts, config.spec.min_p, window)


def _draft_count(drafts: int | str, device: torch.device) -> DraftCount:
    return AutoDrafts(device.type) if drafts == "auto" else FixedDrafts(int(drafts))


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
