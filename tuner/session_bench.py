"""What is timed on the real engine: a session behind its prompt, or the prompt itself.

Sessions are created by the same `create_session` as those of `strata generate`, with the ring
given as the cap of policy `fixed`.
"""

from __future__ import annotations

import time
from dataclasses import replace

from strata.captured import CapturedEngine
from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.device import every_core
from strata.errors import BudgetError, StrataError
from strata.lm import LanguageModel
from strata.parked import Parked
from strata.passages import load_passage
from strata.session import Session, create_session
from strata.tuner.arms import PairSpec
from strata.tuner.measure import RunResult

GPU_DECODE_S = 1.0


class SessionBench:
    """One session that starts behind a parked prompt and is rewound after every run."""

    def __init__(
        self, model: LanguageModel, spec: PairSpec, ring_cells: int, parked: Parked
    ) -> None:
        self._params = SamplingParams(max_new=spec.max_new, ignore_eos=True)
        self._session = open_session(model, spec, ring_cells)
        engine = self._session.engine
        engine.refuse_drafts = self._refuses = spec.purpose == "break-even" and spec.mode == "on"
        self.default_decode_s = _decode_s(model)
        self._has_window = spec.mode == "on"
        captured = isinstance(engine, CapturedEngine)
        self._shorter_runs = range(2, spec.spec + 3) if captured else range(0)
        self._session.restore(parked)

    def warm_up(self, num_tokens: int) -> None:
        """Decode a few tokens and go back to the state after the prompt.

        The last rounds of a run draft less than the others, and where rounds are captured each
        number of drafts is a graph of its own. Shorter runs, one for each number, capture them all
        before anything is timed.
        """
        for max_new in (num_tokens, *self._shorter_runs):
            self._session.generate(SamplingParams(max_new=max_new, ignore_eos=True))
            self._session.rewind()

    def run(self) -> RunResult:
        """Time one continuation and go back to the state after the prompt."""
        done = self._session.generate(self._params)
        self._session.rewind()
        if self._refuses and any(done.accepted):
            raise StrataError(
                f"the engine accepted {sum(done.accepted)} drafts that it was to refuse, so this "
                "run says nothing of what drafting costs"
            )
        return RunResult(
            tokens=len(done.tokens),
            token_hash=done.token_hash,
            rounds=done.rounds,
            decode_s=done.decode_s,
            rounds_per_s=done.rounds / done.decode_s,
            tok_s=(len(done.tokens) - 1) / done.decode_s,
            tokens_per_round=(len(done.tokens) - 1) / done.rounds,
            accepted=list(done.accepted),
            drafted=list(done.drafted),
            tpot_p50_ms=done.tpot_ms(50) or 0.0,
            tpot_p99_ms=done.tpot_ms(99) or 0.0,
            kv_lookups=done.kv.lookups,
            kv_hits=done.kv.hits,
            kv_misses=done.kv.misses,
            kv_bytes=done.kv.bytes,
            kv_overflows=done.kv.overflows,
            expert_lookups=done.experts.lookups,
            expert_misses=done.experts.misses,
            expert_slots=self._session.expert_slots,
            ledger=dict(self._session.ledger),
            mtp_window_cells=self._session.mtp_window_cells if self._has_window else None,
        )

    def close(self) -> None:
        """Free what the session holds."""
        self._session.close()


class PromptBench:
    """A session from nothing to its first token, again and again."""

    def __init__(self, model: LanguageModel, spec: PairSpec, ring_cells: int) -> None:
        self._model, self._spec, self._ring_cells = model, spec, ring_cells
        self._prompt = load_passage(spec.passage, model.tokenizer)
        self.default_decode_s = _decode_s(model)

    def warm_up(self, num_tokens: int) -> None:
        """Run the prompt once, so that no kernel is compiled while one is timed."""
        self.run()

    def run(self) -> RunResult:
        """Time the prompt by itself, and all from the session's creation to its first token.

        A second round must be due, or a session that captures its rounds would not do so.
        """
        start_s = time.perf_counter()
        session = open_session(self._model, self._spec, self._ring_cells)
        try:
            with every_core():
                prefill = session.prefill(self._prompt)
            params = SamplingParams(max_new=self._spec.spec + 2, ignore_eos=True)
            done = session.generate(params)
            return RunResult(
                tokens=len(done.tokens),
                token_hash=done.token_hash,
                prefill_s=prefill.seconds,
                ttft_ms=1000 * (done.times_s[0] - start_s),
                kv_lookups=done.kv.lookups,
                kv_hits=done.kv.hits,
                kv_misses=done.kv.misses,
                kv_bytes=done.kv.bytes,
                kv_overflows=done.kv.overflows,
                expert_lookups=done.experts.lookups,
                expert_misses=done.experts.misses,
                expert_slots=session.expert_slots,
                ledger=dict(session.ledger),
                mtp_window_cells=session.mtp_window_cells if self._spec.mode == "on" else None,
            )
        finally:
            session.close()

    def close(self) -> None:
        """Have nothing to free."""


def open_session(model: LanguageModel, spec: PairSpec, ring_cells: int) -> Session:
    """Return an empty session of a pair's side; raise StrataError where it takes another ring."""
    session = _create(model, spec, ring_cells)
    if session.decision.ring_cells != ring_cells:
        taken, reason = session.decision.ring_cells, session.decision.reason
        session.close()
        raise StrataError(
            f"the session took a ring of {taken} cells where the plan asks for {ring_cells}: "
            f"{reason}"
        )
    return session


def park_prompt(model: LanguageModel, spec: PairSpec) -> Parked:
    """Run a pair's prompt in a session of its own and return its state, a drafter's cells too.

    Nothing of ring, window or budget is left in it, so the session is as small as can be. Where
    a budget does not hold the drafter, one that does not draft runs the prompt.
    """
    drafting = replace(spec, mode="on", spec=max(1, spec.spec), mtp_window_cells=1)
    plain = replace(spec, mode="off", spec=0, mtp_window_cells=None)
    for side in (drafting, plain) if model.has_mtp else (plain,):
        try:
            session = _create(model, side, spec.page_cells)
        except BudgetError:
            if side is plain or spec.mode == "on":
                raise
            continue
        try:
            with every_core():
                session.prefill(load_passage(spec.passage, model.tokenizer))
            return session.park()
        finally:
            session.close()
    raise AssertionError("one of them returns or raises")


def session_config(spec: PairSpec, ring_cells: int) -> SessionConfig:
    """Return the switches of a pair's side with a ring of so many cells."""
    return SessionConfig(
        kv=KvConfig(
            resident_cells=ring_cells,
            victims=spec.victims,
            selection=Selection.parse(spec.select),
            page_cells=spec.page_cells,
        ),
        spec=SpecConfig(drafts=spec.spec, window_cells=spec.mtp_window_cells),
        policy="fixed",
        vram_budget_bytes=spec.vram_budget_bytes,
        max_context_cells=spec.context_cells,
    )


def _create(model: LanguageModel, spec: PairSpec, ring_cells: int) -> Session:
    config = session_config(spec, ring_cells)
    return create_session(
        model, config, prompt_cells=spec.depth_cells, max_new=spec.max_new, environ={}
    )


def _decode_s(model: LanguageModel) -> float:
    return GPU_DECODE_S if model.device.type == "cuda" else 0.0
