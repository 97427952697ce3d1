"""Order a round: draft, verify, commit. The only place that does.

The engine holds no policy and no text: it turns known tokens into the next ones. One main-model
forward verifies a whole window; `forwards` counts them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from strata.config import NOT_FINITE
from strata.draft.base import Drafter
from strata.errors import NotFiniteError, OrderError
from strata.experts.cache import ExpertCache
from strata.kernels.attention import attend_chunk
from strata.kernels.experts import grouped_product, route
from strata.kv.cache import SEED_ROWS, KvCache
from strata.kv.counters import Counters
from strata.lm.model import LanguageModel
from strata.parked import Parked
from strata.prompt import PromptRunner
from strata.sampling import Sampler

PROMPT_CHUNK = {"cpu": 512, "cuda": 8192}
"""Prompt rows a forward in plain torch; a constant of the device, never of ring or budget."""
PROMPT_SEGMENT = {"cpu": 2048, "cuda": 8192}
"""Earlier cells a prompt chunk reads at a time."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one round gave: its verified tokens, and how its drafts fared."""

    tokens: list[int]
    drafted: int
    accepted: int


class Engine:
    """The state of one sequence: its known tokens, its K/V, its drafter."""

    def __init__(
        self, model: LanguageModel, kv: KvCache, experts: ExpertCache, drafter: Drafter
    ) -> None:
        self.model = model
        self.kv = kv
        self.experts = experts
        self.drafter = drafter
        self.prompt: PromptRunner | None = None
        """What runs prompts in kernels; None runs them in plain torch."""
        self.forwards = 0
        self.track_gap = False
        """Whether to keep `smallest_gap`, the least distance of two best scores; tests do."""
        self.smallest_gap = float("inf")
        self.refuse_drafts = False
        """Whether drafts are made and verified and all refused; the tuner prices drafting so."""
        self._known: list[int] = []
        """The sequence: the prompt and, in rounds of this class, what was drawn behind it."""
        self._last: int | None = None
        self._begun: tuple[Sampler, int, float] | None = None
        self._torn = False
        """Whether a round broke off. A pool may then name experts that were never copied."""
        self._prompt_hidden: torch.Tensor | None = None
        self._prompt_queries = torch.empty(0)
        self._prompt_cells = 0

    # -- prompt ---------------------------------------------------------------------------

    @torch.inference_mode()
    def prefill(self, ids: list[int], on_progress: Callable[[int], None] | None = None) -> None:
        """Commit the cells of prompt `ids`, seed the ring, and be ready for `first_token`.

        Raises OrderError where the session is not empty, or the prompt is.
        """
        model = self.model
        self._refuse_cells("prefill")
        if not ids:
            raise OrderError("prefill needs at least one token")
        if self.prompt is not None:
            self._start(*self.prompt.run(ids, self.drafter, on_progress), ids)
            return
        chunk = PROMPT_CHUNK[model.device.type]
        tokens = torch.tensor(ids, device=model.device)
        queries: list[torch.Tensor] = [torch.empty(0)] * model.config.layers
        for start in range(0, len(ids), chunk):
            part = tokens[start : start + chunk]
            hidden = self._forward_chunk(part, start, queries)
            follow = tokens[start + 1 : start + 1 + len(part)]
            self.drafter.observe(follow, hidden[: len(follow)])
            if on_progress:
                on_progress(len(part))
        # Clones: a view would keep the whole chunk.
        self._start(torch.stack(queries), hidden[-1:].clone(), ids)

    def _refuse_cells(self, what: str) -> None:
        if self.kv.committed:
            raise OrderError(
                f"{what} starts an empty session, and this one holds {self.kv.committed} cells"
            )

    def _start(self, queries: torch.Tensor, hidden: torch.Tensor, ids: list[int]) -> None:
        self.kv.note_prompt_end(queries)
        self.kv.seed(placed=self.prompt is not None and self.prompt.give_back())
        self._prompt_queries = queries.cpu()  # for `park` alone, so not in the ledger
        self._prompt_hidden = hidden
        self._prompt_cells = len(ids)
        self._known = list(ids)

    @torch.inference_mode()
    def park(self) -> Parked:
        """Return the state behind the prompt; raise OrderError once a token was drawn."""
        if self._prompt_hidden is None or self._last is not None:
            raise OrderError("park follows prefill or rewind")
        return Parked(
            model_hash=self.model.model_hash,
            tokens=torch.tensor(self._known[: self._prompt_cells], dtype=torch.int32),
            cells=self.kv.prompt_cells(),
            queries=self._prompt_queries,
            hidden=self._prompt_hidden.cpu(),
            drafter_cells=self.drafter.park(),
        )

    @torch.inference_mode()
    def restore(self, parked: Parked) -> None:
        """Start an empty session from `parked` instead of a prompt.

        Raises OrderError where it is not empty, or drafts and the parked one did not.
        """
        device = self.model.device
        self._refuse_cells("restore")
        if self.prompt is not None:
            self.prompt.restore(parked.cells)
        else:
            chunk = PROMPT_CHUNK[device.type]
            for start in range(0, parked.prompt_cells, chunk):
                part = parked.cells[:, start : start + chunk].to(device)
                for layer, cells in enumerate(part):
                    self.kv.write_chunk(layer, cells)
                self.kv.commit_chunk(part.shape[1])
        self.drafter.restore(parked.drafter_cells)
        self._start(parked.queries.to(device), parked.hidden.to(device), parked.tokens.tolist())

    def _forward_chunk(
        self, tokens: torch.Tensor, start: int, queries: list[torch.Tensor]
    ) -> torch.Tensor:
        model, kv, c = self.model, self.kv, self.model.config
        segment = PROMPT_SEGMENT[model.device.type]

        def attend(layer: int, q: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
            kv.write_chunk(layer, cells)
            kept = q[-SEED_ROWS:]
            queries[layer] = torch.cat([queries[layer].to(q), kept])[-SEED_ROWS:] if start else kept
            own = (cells[:, 0].transpose(0, 1), cells[:, 1].transpose(0, 1))
            grouped = q.view(len(q), c.kv_heads, c.group, c.head_dim)
            return attend_chunk(grouped, own, kv.past(layer, segment))

        def experts(layer: int, x: torch.Tensor) -> torch.Tensor:
            ids, weights = self._route(layer, x)
            blobs = self.experts.blobs(layer * c.experts, c.experts)
            return grouped_product(x, blobs, ids, weights)

        positions = torch.arange(start, start + len(tokens), device=model.device)
        hidden = model.run_layers(model.embed(tokens), positions, attend, experts)
        kv.commit_chunk(len(tokens))
        return hidden

    def check_ready(self) -> None:
        """Raise OrderError where no continuation may begin."""
        if self._prompt_hidden is None:
            raise OrderError("a continuation follows prefill or restore; give a prompt first")
        if self._last is not None:
            raise OrderError("a continuation was begun already; rewind to begin another")

    @torch.inference_mode()
    def first_token(self, sampler: Sampler) -> int:
        """Return the token behind the prompt.

        Raises OrderError where it has been drawn, NotFiniteError where none can be.
        """
        self.check_ready()
        assert self._prompt_hidden is not None
        logits = self.model.logits(self._prompt_hidden)
        if not _are_finite(logits).all():
            raise NotFiniteError(self._prompt_cells)
        scores = sampler.scores(logits, self._positions(self._prompt_cells, 1), self._known)
        token = scores.argmax(-1)
        self._note_gap(scores)
        self.drafter.observe(token, self._prompt_hidden)
        self._last = int(token)
        self._known.append(self._last)
        return self._last

    @torch.inference_mode()
    def rewind(self) -> None:
        """Go back to the state right behind the prompt: cells, ring, drafter.

        Raises OrderError where there was no prompt.
        """
        if self._prompt_hidden is None:
            raise OrderError("rewind follows prefill or restore")
        self.kv.truncate(self._prompt_cells)
        self.drafter.truncate(self._prompt_cells)
        del self._known[self._prompt_cells :]
        self._last = None

    # -- decode ---------------------------------------------------------------------------

    def prepare(self, drafts: int, min_p: float, *, at_most: int) -> None:
        """Make ready what rounds of `drafts` drafts need, behind `first_token`: here nothing."""

    def round(self, sampler: Sampler, drafts: int, min_p: float = 0.0) -> Round:
        """Draft at most `drafts` tokens, verify them in one forward, commit what held."""
        self.launch(sampler, drafts, min_p, at_most=drafts)
        return self.collect()

    def launch(self, sampler: Sampler, drafts: int, min_p: float, *, at_most: int) -> None:
        """Begin the round that `collect` returns, as if it had `at_most` drafts.

        A GPU works on it meanwhile. It may draft more than count, because a number of rows that no
        round had before would have to be captured.
        """
        self._begun = (sampler, min(drafts, at_most), min_p)

    def foresees(self, drafts: int, min_p: float) -> bool:
        """Return whether such a round may be launched before the one under way is collected.

        All its drafts must count. Here nothing is under way while the host is.
        """
        return False

    def discard(self) -> None:
        """Give up rounds that nobody will collect; a `rewind` has to follow."""
        self._begun = None
        if self._torn:
            self._torn = False
            self._forget_experts()

    def _forget_experts(self) -> None:
        self.experts.forget()

    @torch.inference_mode()
    def collect(self) -> Round:
        """Return the oldest round that was begun, ended; NOT_FINITE ends what can be drawn."""
        assert self._last is not None, "round follows first_token"
        assert self._begun is not None, "collect follows launch"
        (sampler, drafts, min_p), self._begun = self._begun, None
        base = self.kv.committed
        proposed = self._propose(sampler, drafts, min_p)
        rows = torch.tensor([self._last, *proposed], device=self.model.device)
        self._torn = True
        hidden = self._verify(rows)
        self._torn = False
        logits = self.model.logits(hidden)
        scores = sampler.scores(logits, self._positions(base + 1, len(rows)), self._known)
        targets = scores.argmax(-1)
        drawn = targets.tolist()
        given = targets.masked_fill(~_are_finite(logits), NOT_FINITE).tolist()
        accepted = 0
        agreed = 0 if self.refuse_drafts else len(proposed)
        while accepted < agreed and proposed[accepted] == drawn[accepted]:
            accepted += 1
        self._note_gap(scores[: accepted + 1])
        self.kv.commit(accepted + 1)
        self.drafter.observe(targets[: accepted + 1], hidden[: accepted + 1])
        self._last = drawn[accepted]
        self._known[base + 1 :] = drawn[: accepted + 1]
        return Round(given[: accepted + 1], len(proposed), accepted)

    def _propose(self, sampler: Sampler, drafts: int, min_p: float) -> list[int]:
        """Return the drafts of a round, each known to those behind it and to the target's rows."""
        known, end = self._known, self.kv.committed + 1

        def pick(logits: torch.Tensor, position: int) -> torch.Tensor:
            token = sampler.pick(logits, self._positions(position, 1), known)
            known.append(int(token))
            return token

        proposed = self.drafter.propose(drafts, pick, min_p)
        known[end:] = proposed
        return proposed

    def _verify(self, rows: torch.Tensor) -> torch.Tensor:
        model, c = self.model, self.model.config
        window = self.kv.begin(len(rows))

        def experts(layer: int, x: torch.Tensor) -> torch.Tensor:
            ids, weights = self._route(layer, x)
            return self.experts.product(x, ids + layer * c.experts, weights)

        self.forwards += 1
        return model.run_layers(model.embed(rows), window.positions, self.kv.attend, experts)

    def _route(self, layer: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        c = self.model.config
        return route(
            self.model.weights.routers[layer](x),
            count=c.experts_per_token,
            normalise=c.normalise_router,
        )

    def close(self) -> None:
        """Let go of what would keep the engine alive until a collector runs: here nothing."""

    def check_integrity(self) -> None:
        """Assert what must hold of residency between rounds, of pages and of experts."""
        self.kv.residency.check_integrity()
        self.experts.check_integrity()

    def kv_counters(self) -> Counters:
        """Return the K/V lookups of all layers so far."""
        return self.kv.counters.total()

    def expert_counters(self) -> Counters:
        """Return the expert lookups so far."""
        return replace(self.experts.counters)

    def _positions(self, first: int, count: int) -> torch.Tensor:
        return torch.arange(first, first + count, device=self.model.device)

    def _note_gap(self, scores: torch.Tensor) -> None:
        if self.track_gap:
            top = scores.topk(2, -1).values
            self.smallest_gap = min(self.smallest_gap, float((top[:, 0] - top[:, 1]).min()))


def _are_finite(logits: torch.Tensor) -> torch.Tensor:
    """Return whether a token can be drawn from each row of `logits` [R, V], as flags [R]."""
    return logits.amax(-1).isfinite()
