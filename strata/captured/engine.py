"""Order the phases of a captured round.

A round is two phases. *Draft* chains the drafter k times behind the last verified token. *Verify*
runs the main model over k + 1 rows, draws the target tokens, counts how many drafts they equal,
moves the committed end, and writes the drafter's cells of all rows (those of rejected rows lie
ahead of the committed end and are overwritten). Both read positions, tokens and page tables from
device memory, so each is captured once per number of rows. The host reads one small tensor a
round: the target tokens and the number accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from strata.captured.experts import PhaseExperts, phase_experts
from strata.captured.pages import DensePages, Pages, SelectedPages
from strata.captured.phase import Phase
from strata.config import MAX_DRAFTS, MAX_ROWS
from strata.draft.base import Drafter
from strata.draft.mtp import MtpDrafter
from strata.engine import Engine, Round
from strata.experts.cache import ExpertCache
from strata.kv.cache import KvCache
from strata.kv.counters import Counters
from strata.lm.model import LanguageModel
from strata.sampling import Sampler


class CapturedEngine(Engine):
    """An Engine whose rounds are launches of captured phases.

    Tokens, rounds and accepted drafts are those of Engine; only the bits of the drafter's own
    arithmetic may differ, which never changes a token.
    """

    def __init__(
        self, model: LanguageModel, kv: KvCache, experts: ExpertCache, drafter: Drafter
    ) -> None:
        super().__init__(model, kv, experts, drafter)
        self._sampler: Sampler | None = None
        self._pages: Pages = SelectedPages(kv) if kv.bounds is not None else DensePages(kv)
        self._phase_experts: PhaseExperts = phase_experts(experts, model.config.experts_per_token)

    def _arm(self, sampler: Sampler) -> None:
        """Lay out the tensors that phases share, and forget phases that draw otherwise."""
        device, config = self.model.device, self.model.config
        self._sampler = sampler
        self._phases: dict[tuple[object, ...], Phase] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._base = torch.zeros(1, dtype=torch.long, device=device)
        self._tokens = torch.zeros(MAX_ROWS, dtype=torch.long, device=device)
        self._limit = torch.full((1,), MAX_DRAFTS, dtype=torch.long, device=device)
        self._result = torch.zeros(MAX_ROWS + 2, dtype=torch.long, device=device)
        self._query = torch.zeros(
            1, config.heads, config.head_dim, dtype=self.model.dtype, device=device
        )
        self._residual = torch.zeros(1, config.hidden, dtype=self.model.dtype, device=device)
        pinned = device.type == "cuda"
        self._read = torch.zeros(MAX_ROWS + 2, dtype=torch.long, pin_memory=pinned)

    def _verify_rows(self, rows: int, every_page: bool) -> None:
        model, config = self.model, self.model.config
        offsets = torch.arange(rows, device=model.device)
        positions = self._base + offsets
        self._pages.open(positions, every_page=every_page)

        def experts(layer: int, x: torch.Tensor) -> torch.Tensor:
            ids, weights = self._route(layer, x)
            return self._phase_experts.product(x, ids, weights, layer * config.experts)

        tokens = self._tokens[:rows]
        hidden = model.run_layers(model.embed(tokens), positions, self._pages.attend, experts)
        assert self._sampler is not None
        targets = self._sampler.pick(model.logits(hidden), positions + 1)
        equal = (targets[:-1] == tokens[1:]) & (offsets[:-1] < self._limit)
        accepted = equal.long().cumprod(0).sum()
        self._pages.accept(accepted)
        self._result[:rows] = targets
        self._result[MAX_ROWS] = accepted
        self._result[MAX_ROWS + 1 :] = self._limit
        if isinstance(self.drafter, MtpDrafter):
            q, residual = self.drafter.write_rows(targets, hidden, positions + 1, committed=True)
            self._query.copy_(q.index_select(0, accepted.view(1)))
            self._residual.copy_(residual.index_select(0, accepted.view(1)))
        self._tokens[:1] = targets.index_select(0, accepted.view(1))
        self._base += accepted + 1

    def _draft_rows(self, count: int, min_p: float) -> None:
        """Draft `count` tokens; `_limit` says before which the drafter's doubt exceeded `min_p`."""
        assert isinstance(self.drafter, MtpDrafter)
        assert self._sampler is not None
        sure = torch.ones(1, dtype=torch.long, device=self.model.device)
        self._limit.fill_(0 if min_p > 0 else MAX_DRAFTS)
        q, residual, position = self._query, self._residual, self._base.clone()
        for j in range(1, count + 1):
            hidden = self.drafter.output_at(q, residual, position)
            position = position + 1
            logits = self.model.logits(hidden)
            token = self._sampler.pick(logits, position)
            self._tokens[j : j + 1] = token
            if min_p > 0:
                sure = sure * (logits.softmax(-1)[0].index_select(0, token) >= min_p)
                self._limit += sure
            if j < count:
                q, residual = self.drafter.write_rows(token, hidden, position, committed=False)

    def _phase(self, body: Callable[..., None], *arguments: float) -> Phase:
        """Return the phase that runs `body` with `arguments`, captured at its first use."""
        key = (body.__name__, *arguments)
        if key not in self._phases:
            saved = [t.clone() for t in self._state()]

            def undo() -> None:
                for tensor, before in zip(self._state(), saved, strict=True):
                    tensor.copy_(before)

            run = partial(body, *arguments)
            self._phases[key] = Phase(run, undo, self.model.device, self._pool)
        return self._phases[key]

    def _state(self) -> list[torch.Tensor]:
        """Return what a phase changes besides K/V; a capture's warm-up must leave it alone."""
        own = [self._base, self._tokens, self._limit, self._query, self._residual]
        return [*own, *self._pages.state(), *self._phase_experts.state()]

    @torch.inference_mode()
    def first_token(self, sampler: Sampler) -> int:
        """Return the token behind the prompt and set the rounds up behind it."""
        token = super().first_token(sampler)
        if self._sampler is None or not self._sampler.draws_like(sampler):
            self._arm(sampler)
        self._pages.arm()
        self._base.fill_(self.kv.committed)
        self._tokens[0] = token
        if isinstance(self.drafter, MtpDrafter):
            q, residual = self.drafter.write_pending()
            self._query.copy_(q)
            self._residual.copy_(residual)
        return token

    @torch.inference_mode()
    def round(self, sampler: Sampler, drafts: int, min_p: float = 0.0) -> Round:
        """Launch draft and verify, then read what was accepted."""
        rows = drafts + 1
        every_page = self._pages.before(rows)
        if drafts:
            self._phase(self._draft_rows, drafts, min_p).run()
        self._phase(self._verify_rows, rows, every_page).run()
        self.forwards += 1
        self._read.copy_(self._result, non_blocking=True)
        if self.model.device.type == "cuda":
            torch.cuda.current_stream(self.model.device).synchronize()
        drawn, accepted = self._read[:rows].tolist(), int(self._read[MAX_ROWS])
        self._pages.after(rows, accepted + 1, every_page=every_page)
        config = self.model.config
        self._phase_experts.after(rows * config.experts_per_token * config.layers)
        if isinstance(self.drafter, MtpDrafter):
            self.drafter.advance(accepted + 1)
        self._last = drawn[accepted]
        return Round(drawn[: accepted + 1], min(drafts, int(self._read[MAX_ROWS + 1])), accepted)

    def check_integrity(self) -> None:
        """Assert what must hold of residency between rounds, as the device knows it."""
        self._pages.sync()
        self._phase_experts.sync()
        super().check_integrity()

    def kv_counters(self) -> Counters:
        """Return K/V lookups so far, those counted on the device included."""
        return self._pages.counters()

    def expert_counters(self) -> Counters:
        """Return expert lookups so far."""
        return self._phase_experts.counters()
