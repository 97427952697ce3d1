"""Order a captured round.

The drafter chains k times behind the last verified token. Then the main model runs over k + 1
rows, draws the target tokens, counts how many drafts they equal, moves the committed end, and the
drafter's cells of all rows are written (those of rejected rows lie ahead of the committed end and
are overwritten). All of it reads positions, tokens and page tables from device memory, so it is
one phase, captured once per number of drafts. The host reads one small tensor a round: the target
tokens and the number accepted. So most rounds need nothing that the host reads of the one before,
and are launched before it has.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial

import torch

from strata.captured.drafting import DraftLayer
from strata.captured.experts import PhaseExperts, phase_experts
from strata.captured.layers import DecodeLayers
from strata.captured.pages import DensePages, Pages, SelectedPages
from strata.captured.phase import Phase
from strata.captured.tokens import TokenDraw
from strata.config import MAX_ROWS, Prefetch
from strata.draft.base import Drafter
from strata.draft.mtp import MtpDrafter
from strata.engine import Engine, Round
from strata.experts.cache import ExpertCache, PooledExperts
from strata.kernels.accept import ROUNDS_KEPT, Board, accept
from strata.kv.cache import KvCache
from strata.kv.counters import Counters
from strata.lm.model import LanguageModel
from strata.round_buffers import Buffers, allocate, round_buffers
from strata.sampling import Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A round under way."""

    drafts: int
    counted: int
    """Drafts that count."""
    every_page: bool


class CapturedEngine(Engine):
    """An Engine whose rounds are launches of phases, captured as graphs where it is asked to.

    Kernels that add in another order than the Engine's products may draw another token where two
    scores nearly tie; among phases, captured or not, tokens and rounds are the same bit for bit.
    """

    def __init__(
        self,
        model: LanguageModel,
        kv: KvCache,
        experts: ExpertCache,
        drafter: Drafter,
        *,
        buffers: Buffers | None = None,
        capture: bool = True,
        prefetch: Prefetch = "none",
    ) -> None:
        """Take the tensors of rounds from `buffers`, those of `round_buffers`, else make them.

        What is fetched ahead is what `buffers` have tensors for; `prefetch` says which to make.
        """
        super().__init__(model, kv, experts, drafter)
        if buffers is None:
            specs = round_buffers(
                model.config,
                kv.geometry,
                rows=MAX_ROWS,
                victims=kv.victims,
                window_cells=drafter.ring.window if isinstance(drafter, MtpDrafter) else None,
                expert_slots=experts.slots if isinstance(experts, PooledExperts) else None,
                prefetch=prefetch,
            )
            buffers = allocate(specs, model.device)
        self._buffers = buffers
        self._capture = capture and model.device.type == "cuda"
        self.looks_ahead = self._capture or model.device.type == "cpu"
        """Whether rounds may be launched ahead. Never launch by launch on a GPU: a kernel there may
        begin while earlier ones run, and before it waits it reads what earlier rounds wrote."""
        self._pages: Pages = (
            SelectedPages(kv, buffers) if kv.bounds is not None else DensePages(kv, buffers)
        )
        self._phase_experts: PhaseExperts = phase_experts(experts, buffers)
        page_counts = buffers["pages.counters"] if kv.bounds is not None else None
        self._board = Board.over(buffers["board"], page_counts, buffers.get("experts.counters"))
        self._results = list(self._board.result[:, : MAX_ROWS + 2])
        self._layers = DecodeLayers(model, self._pages, self._phase_experts, buffers)
        self._draft = (
            DraftLayer(model, drafter, buffers) if isinstance(drafter, MtpDrafter) else None
        )
        self._draw: TokenDraw | None = None
        self._phases: dict[tuple[int, float, bool], Phase] = {}
        self._under_way: deque[Launched] = deque()
        self._collected = 0  # rounds behind the first token
        on_gpu = model.device.type == "cuda"
        self._ended: list[torch.cuda.Event] = [
            torch.cuda.Event()  # type: ignore[no-untyped-call]
            for _ in range(ROUNDS_KEPT * on_gpu)
        ]
        self._pool = torch.cuda.graph_pool_handle() if self._capture else None

    def _round_rows(self, drafts: int, min_p: float, every_page: bool) -> None:
        try:
            if drafts:
                self._draft_rows(drafts, min_p)
            self._verify_rows(drafts + 1, every_page)
        finally:  # a capture cannot end with a side line open, not even by Ctrl-C
            self._phase_experts.join()
            self._pages.join()

    def _verify_rows(self, rows: int, every_page: bool) -> None:
        board, page_cells = self._board, self.kv.geometry.page_cells
        assert self._draw is not None
        hidden = self._layers.run(board, rows, every_page=every_page)
        shares = self._draw.tokens(hidden, board.ahead[:rows], board.targets[:rows])
        accept(board, rows=rows, page_cells=page_cells, shares=shares)
        self._draw.note()
        self._layers.keep(board, rows)
        if self._draft is not None:
            # Cells of rejected rows lie ahead of the committed end and are overwritten.
            at = board.written_ahead[:rows]
            self._draft.write(board.targets[:rows], hidden, at, committed=True)

    def _draft_rows(self, count: int, min_p: float) -> None:
        """Draft `count` tokens; `limit` says before which the drafter's doubt exceeded `min_p`."""
        board, draft = self._board, self._draft
        assert draft is not None
        assert self._draw is not None
        row: torch.Tensor | None = board.accepted
        for j in range(1, count + 1):
            hidden = draft.output(board.positions[j - 1 : j], row)
            token, at = board.tokens[j : j + 1], board.ahead[j - 1 : j]
            shares = self._draw.tokens(hidden, at, token)
            if min_p > 0:
                if j == 1:
                    board.limit.zero_()
                sure, going = self._buffers["draft.sure"]
                torch.ge(shares, min_p, out=sure)
                torch.eq(board.limit, j - 1, out=going)
                board.limit.add_(sure.logical_and_(going))
            if j < count:
                draft.write(token, hidden, at, committed=False)
                row = None

    def _phase(self, drafts: int, min_p: float, every_page: bool) -> Phase:
        """Return the phase of such a round, captured at its first use."""
        key = (drafts, min_p, every_page)
        if key not in self._phases:
            saved = [t.clone() for t in self._state()]

            def undo() -> None:
                for tensor, before in zip(self._state(), saved, strict=True):
                    tensor.copy_(before)

            run = partial(self._round_rows, *key)
            self._phases[key] = Phase(run, undo, self.model.device, self._pool, self._capture)
        return self._phases[key]

    def _state(self) -> list[torch.Tensor]:
        """Return what a phase changes besides K/V; a capture's warm-up must leave it alone."""
        draft = [] if self._draft is None else self._draft.state()
        seen = [] if self._draw is None else self._draw.state()
        kept = (self._pages.state(), self._phase_experts.state())
        return [*self._board.state(), *seen, *draft, *kept[0], *kept[1]]

    @torch.inference_mode()
    def first_token(self, sampler: Sampler) -> int:
        """Return the token behind the prompt and set the rounds up behind it."""
        token = super().first_token(sampler)
        if self._draw is None or not self._draw.sampler.draws_like(sampler):
            self._draw = TokenDraw(self.model, sampler, self._buffers, self._board)
            self._phases = {}
        self._draw.begin(self._known)
        self._pages.arm()
        self._phase_experts.arm()
        self._board.start(self.kv.committed, token, self.kv.geometry.page_cells)
        self._under_way.clear()
        self._collected = 0
        if self.refuse_drafts:
            self._board.limit.zero_()
        if self._draft is not None:
            assert isinstance(self.drafter, MtpDrafter)
            self._board.accepted.zero_()
            self._draft.take(*self.drafter.write_pending())
        return token

    @torch.inference_mode()
    def prepare(self, drafts: int, min_p: float, *, at_most: int) -> None:
        """Capture such a round, so that the first one does not wait for it."""
        if self._capture and at_most >= 0:
            drafts = self._drafts_to_run(drafts, min_p, at_most)
            self._torn = True
            self._pages.bear(self._board, drafts + 1, 0)
            self._phase(drafts, min_p, self.kv.reads_every(drafts + 1))
            self._torn = False

    @torch.inference_mode()
    def launch(self, sampler: Sampler, drafts: int, min_p: float, *, at_most: int) -> None:
        """Launch draft and verify behind one another."""
        counted, drafts = min(drafts, at_most), self._drafts_to_run(drafts, min_p, at_most)
        if counted < drafts:
            self._board.limit.fill_(0 if self.refuse_drafts else counted)
        under_way = sum(launched.drafts + 1 for launched in self._under_way)
        every_page = self.kv.reads_every(drafts + 1)
        self._torn = True
        self._pages.bear(self._board, drafts + 1, under_way)
        self._phase(drafts, min_p, every_page).run()
        self._torn = False
        if self._ended:
            number = self._collected + len(self._under_way)
            stream = torch.cuda.current_stream(self.model.device)
            self._ended[number % ROUNDS_KEPT].record(stream)
        self._under_way.append(Launched(drafts=drafts, counted=counted, every_page=every_page))

    def foresees(self, drafts: int, min_p: float) -> bool:
        """Return whether its phase is there, and nothing of it hangs on what the host will read."""
        if not self.looks_ahead or len(self._under_way) != 1:
            return False
        ready = (drafts, min_p, self.kv.reads_every(drafts + 1)) in self._phases
        return ready and self.kv.foresees(drafts + 1, self._under_way[0].drafts + 1)

    @torch.inference_mode()
    def discard(self) -> None:
        """Wait for what is under way, and take back what it counted.

        Nothing else of a whole round needs undoing, because a rewind does so behind any number.
        """
        if self.model.device.type == "cuda":
            torch.cuda.current_stream(self.model.device).synchronize()
        self._under_way.clear()
        self._board.restore_counts(self._collected)
        super().discard()

    def _forget_experts(self) -> None:
        self._phase_experts.forget()

    def _drafts_to_run(self, drafts: int, min_p: float, at_most: int) -> int:
        """Return how many drafts a round makes of which `at_most` count."""
        g = self.kv.geometry
        fits = self.kv.committed + drafts < g.pages * g.page_cells
        more = self._capture and min_p == 0 and fits
        return drafts if more else min(drafts, at_most)

    @torch.inference_mode()
    def collect(self) -> Round:
        """Wait for the round, and read what was accepted: the only thing that the host reads."""
        done, number = self._under_way.popleft(), self._collected % ROUNDS_KEPT
        rows, config = done.drafts + 1, self.model.config
        if self._ended:
            self._ended[number].synchronize()
        *drawn, accepted, limit = self._results[number].tolist()
        self._collected += 1
        self.forwards += 1
        self._pages.after(rows, accepted + 1, every_page=done.every_page)
        for launched in self._under_way:  # which stands behind this one
            self._pages.born(launched.drafts + 1)
        self._phase_experts.after(rows * config.experts_per_token * config.layers)
        if isinstance(self.drafter, MtpDrafter):
            self.drafter.advance(accepted + 1)
        self._last = drawn[accepted]
        drafted = done.counted if self.refuse_drafts else min(done.counted, limit)
        return Round(drawn[: accepted + 1], drafted, accepted)

    def close(self) -> None:
        """Free the graphs; each knows the engine whose phase it is."""
        self._phases.clear()

    def check_integrity(self) -> None:
        """Assert what must hold of residency between rounds, as the device knows it."""
        if self._last is not None:  # before the first token the host knows better
            self._pages.sync()
        self._phase_experts.sync()
        super().check_integrity()

    def kv_counters(self) -> Counters:
        """Return K/V lookups so far, those counted on the device included."""
        return self._pages.counters()

    def expert_counters(self) -> Counters:
        """Return expert lookups so far."""
        return self._phase_experts.counters()
