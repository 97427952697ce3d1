"""The experts of a captured phase: all on the device, or a pool resolved in the phase."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch

from strata.captured.prefetch import ExpertsAhead
from strata.experts.cache import ExpertCache, PooledExperts, ResidentExperts
from strata.kernels.experts import Settled, slot_product
from strata.kernels.gather import gather_pages
from strata.kernels.resolve import resolve
from strata.kernels.resolve.state import FILLED
from strata.kv.counters import Counters
from strata.lm.linear import Linear
from strata.round_buffers import Buffers, admitted, resolve_state


class PhaseExperts(Protocol):
    """Apply routed experts without a decision of the host."""

    def arm(self) -> None:
        """Be ready behind a prompt."""

    def product(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        base: int,
        settled: Settled,
        following: Linear | None,
    ) -> None:
        """Apply experts `ids` [R, k] + `base` to `x` [R, H] and settle their sum.

        `following` is the router of the next layer, whose experts may be fetched meanwhile.
        """

    def join(self) -> None:
        """Wait in the round for what is fetched beside it."""

    def after(self, routed: int) -> None:
        """Count a round that routed to `routed` experts, repeats included."""

    def forget(self) -> None:
        """Let nothing be resident that a phase which broke off was bringing in."""

    def sync(self) -> None:
        """Bring what the host knows of residency up to date."""

    def counters(self) -> Counters:
        """Return the counts so far."""

    def state(self) -> list[torch.Tensor]:
        """Return what a warm-up run must not have changed."""


class AllResident:
    """Every expert on the device: no slot ever changes hands.

    A pool with a slot for each is filled behind the prompt, which borrows its room.
    """

    def __init__(self, cache: ResidentExperts | PooledExperts) -> None:
        self._cache = cache
        self._weights = cache.pool if isinstance(cache, PooledExperts) else cache.weights
        self._filled = isinstance(cache, ResidentExperts)

    def arm(self) -> None:
        """Fill the pool, once: there is one prompt a session."""
        if not self._filled:
            assert isinstance(self._cache, PooledExperts)
            self._cache.fill()
            self._filled = True

    def product(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        base: int,
        settled: Settled,
        following: Linear | None,
    ) -> None:
        """Multiply where every expert lies; nothing is ever fetched."""
        slot_product(x, ids, weights, self._weights, base=base, settled=settled)

    def join(self) -> None:
        """Have nothing on its way."""

    def after(self, routed: int) -> None:
        """Count hits: a captured phase does not."""
        self._cache.counters.count(lookups=routed, misses=0, overflows=0, item_bytes=0)

    def forget(self) -> None:
        """Keep everything: a phase brings nothing in."""

    def sync(self) -> None:
        """Have nothing to bring: no slot changes hands."""

    def counters(self) -> Counters:
        """Return the cache's counts."""
        return replace(self._cache.counters)

    def state(self) -> list[torch.Tensor]:
        """Return nothing."""
        return []


class Pooled:
    """One pool over all layers, resolved with second chance in device memory."""

    def __init__(self, cache: PooledExperts, buffers: Buffers) -> None:
        self._cache = cache
        residency = cache.residency
        self._state = resolve_state(buffers, "experts", residency.table, residency.owner)
        self._state.start(residency.filled)
        self._admitted = admitted(buffers, "experts.in")
        self._ahead: ExpertsAhead | None = None
        if "experts.next.slots" in buffers:
            self._ahead = ExpertsAhead(self._state, cache.host, cache.pool, buffers)

    def arm(self) -> None:
        """Keep what is in the pool; experts do not depend on the sequence."""

    def product(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        base: int,
        settled: Settled,
        following: Linear | None,
    ) -> None:
        """Resolve the window's experts of a layer, fetch the missing, multiply where they lie."""
        state, admitted, ahead = self._state, self._admitted, self._ahead
        host, pool = self._cache.host, self._cache.pool
        self.join()
        resolve(state, ids, admitted, layer=0, base=base, joined=ahead is not None)
        if ahead is not None and following is not None:
            ahead.run(x, following, base + following.shape[0])
        count = admitted.count[0, :1]
        gather_pages(host, pool, admitted.pages[0], admitted.slots[0], count, planes=1)
        table = state.table[0]
        slot_product(x, ids, weights, pool, table=table, host=host, base=base, settled=settled)

    def join(self) -> None:
        """Wait for experts that are fetched for the next layer."""
        if self._ahead is not None:
            self._ahead.join()

    def after(self, routed: int) -> None:
        """Leave it to the device, which knows the distinct ones."""

    def forget(self) -> None:
        """Empty every slot; nothing was fetched ahead then, either."""
        self._cache.forget()
        self._state.start(self._cache.residency.filled)
        if self._ahead is not None:
            self._ahead.clear()

    def sync(self) -> None:
        """Read how many slots are filled."""
        self._cache.residency.filled = self._state.scalars[:, FILLED].tolist()

    def counters(self) -> Counters:
        """Return what the device counted."""
        lookups, hits, misses, overflows = self._state.counters[0].tolist()
        moved = misses * self._cache.host[0].nbytes
        ahead = (0, 0) if self._ahead is None else self._ahead.counts()
        return Counters(lookups, hits, misses, moved, overflows, *ahead)

    def state(self) -> list[torch.Tensor]:
        """Return the counters; a warm-up run leaves experts in the pool."""
        return [self._state.counters, *([] if self._ahead is None else self._ahead.state())]


def phase_experts(cache: ExpertCache, buffers: Buffers) -> PhaseExperts:
    """Return the experts of a session as its phases use them."""
    if isinstance(cache, PooledExperts) and not cache.holds_all:
        return Pooled(cache, buffers)
    assert isinstance(cache, PooledExperts | ResidentExperts)
    return AllResident(cache)
