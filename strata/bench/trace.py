"""Record what a session selects, round by round, to replay it through victim policies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.kv.residency import Admission, Residency
from strata.lm.model import LanguageModel
from strata.session import create_session


@dataclass(frozen=True, slots=True)
class Resolve:
    """One resolve of one layer."""

    pages: torch.Tensor  # [N], distinct and ascending
    keep_from: int


@dataclass(slots=True, kw_only=True)
class Trace:
    """Every resolve of a continuation, and what the ring could be seeded with."""

    select_pages: int
    page_cells: int
    num_pages: int
    tail: int
    born_pages: int
    """Pages that existed behind the prompt."""
    rankings: list[torch.Tensor]
    """[L] lists of pages, the one that most deserves a slot first (the engine's seeding)."""
    resolves: list[list[Resolve]] = field(default_factory=list)
    """[L] lists of resolves in time."""


class _Recorder(Residency):
    """A residency that notes what it is asked for."""

    def __init__(self, inner: Residency, trace: Trace, on_step: Callable[[int], None]) -> None:
        vars(self).update(vars(inner))
        self._trace = trace
        self._on_step = on_step

    def resolve(
        self, layer: int, pages: torch.Tensor, *, keep_from: int | None = None
    ) -> tuple[torch.Tensor, Admission | None]:
        """Note the call and pass it on."""
        assert keep_from is not None
        self._trace.resolves[layer].append(Resolve(pages.cpu(), keep_from))
        if layer == 0:
            self._on_step(1)
        return super().resolve(layer, pages, keep_from=keep_from)


def record(
    model: LanguageModel,
    ids: list[int],
    *,
    selection: Selection,
    drafts: int,
    max_new: int,
    on_step: Callable[[int], None],
) -> Trace:
    """Return the trace of a greedy continuation of `ids`, which does not depend on a ring.

    The drafter reads everything: a window that follows the ring would change the rounds.
    `on_step` is told the cells of each prompt chunk, then 1 for each round that resolves.
    """
    config = SessionConfig(
        kv=KvConfig(resident_cells=0, selection=selection),
        spec=SpecConfig(drafts=drafts, window_cells=0),
        rounds="reference",
    )
    session = create_session(model, config, prompt_cells=len(ids), max_new=max_new, environ={})
    session.prefill(ids, on_step)
    kv = session.engine.kv
    g = kv.geometry
    trace = Trace(
        select_pages=g.select_pages,
        page_cells=g.page_cells,
        num_pages=g.pages,
        tail=g.tail,
        born_pages=kv.born_pages,
        rankings=[kv.seed_ranking(layer).cpu() for layer in range(g.layers)],
        resolves=[[] for _ in range(g.layers)],
    )
    kv.residency = _Recorder(kv.residency, trace, on_step)
    session.generate(SamplingParams(max_new=max_new, ignore_eos=True)).whole()
    session.close()
    return trace
