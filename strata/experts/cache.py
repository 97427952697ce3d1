"""Give the decode path the weights of the experts it routed to.

Shapes: N experts over all layers, B weights of one expert, R rows, k experts a row.
"""

from __future__ import annotations

from typing import Protocol

import torch

from strata.arena import Arena
from strata.kv.counters import Counters
from strata.kv.residency import Residency
from strata.kv.victims import make_victims


class ExpertCache(Protocol):
    """Hand out expert weights by their number over all layers."""

    counters: Counters
    slots: int

    def gather(self, experts: torch.Tensor) -> torch.Tensor:
        """Return the weights [R * k, B] of `experts` [R * k], repeats included."""


class ResidentExperts:
    """Every expert on the device: no slots to fight for, every lookup a hit."""

    def __init__(self, weights: torch.Tensor) -> None:
        self._weights = weights
        self.counters = Counters()
        self.slots = len(weights)

    def gather(self, experts: torch.Tensor) -> torch.Tensor:
        """Return the weights of `experts`."""
        self.counters.count(lookups=len(experts), misses=0, overflows=0, item_bytes=0)
        return self._weights.index_select(0, experts)


class PooledExperts:
    """A pool of slots over all layers; what does not fit is read in place from host memory."""

    def __init__(self, host: torch.Tensor, slots: int, arena: Arena) -> None:
        self._host = host  # [N, B]
        self.slots = slots
        self.counters = Counters()
        self._pool = arena.take("expert slots", (slots, host.shape[1]), host.dtype)
        table = arena.take("expert tables", (1, len(host)), torch.int32)
        owner = arena.take("expert tables", (1, slots), torch.int32)
        self.residency = Residency(make_victims("clock", 1, slots, arena.device), table, owner)

    def gather(self, experts: torch.Tensor) -> torch.Tensor:
        """Return the weights of `experts`; the distinct ones are resolved in one call."""
        distinct = experts.unique()
        before, admission = self.residency.resolve(0, distinct)
        misses = overflows = 0
        if admission is not None:
            self._pool.index_copy_(0, admission.slots, self._from_host(admission.pages))
            misses = int((before < 0).sum())
            overflows = misses - len(admission.pages)
        self.counters.count(
            lookups=len(distinct),
            misses=misses,
            overflows=overflows,
            item_bytes=self._host.shape[1] * self._host.element_size(),
        )
        slots = self.residency.slots_of(0, experts)
        out = self._pool.index_select(0, slots.clamp_min(0))
        if overflows:
            in_place = (slots < 0).nonzero()[:, 0]
            out.index_copy_(0, in_place, self._from_host(experts[in_place]))
        return out

    def _from_host(self, experts: torch.Tensor) -> torch.Tensor:
        return self._host.index_select(0, experts.to(self._host.device)).to(self._pool.device)
