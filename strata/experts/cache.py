"""Give the decode path the weights of the experts it routed to.

Shapes: N experts over all layers, R rows, k experts a row, I expert width, H hidden. An expert
is [3I, H]: the rows of gate and up, then down transposed.
"""

from __future__ import annotations

from typing import Protocol

import torch

from strata.arena import Arena
from strata.kernels import device
from strata.kernels.experts import expert_product, slot_product
from strata.kv.counters import Counters
from strata.kv.residency import Residency
from strata.kv.victims import make_victims

Gathered = tuple[torch.Tensor, torch.Tensor]
"""Gate and up [R * k, 2I, H], and down transposed [R * k, I, H]."""


class ExpertCache(Protocol):
    """Hand out expert weights by their number over all layers."""

    counters: Counters
    slots: int

    def gather(self, experts: torch.Tensor) -> Gathered:
        """Return the weights of `experts` [R * k], repeats included."""

    def product(
        self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the sum [R, H] of `experts` [R, k] applied to `x` [R, H], by `weights` [R, k]."""

    def blobs(self, first: int, count: int) -> torch.Tensor:
        """Return experts `first` to `first + count` whole [count, 3I, H], wherever they live.

        For a prompt, which routes to nearly all of them; nothing is counted or made resident.
        """

    def forget(self) -> None:
        """Let nothing be resident, where a product broke off that was bringing experts in."""

    def check_integrity(self) -> None:
        """Assert what must hold of residency between products."""


class ResidentExperts:
    """Every expert on the device: no slots to fight for, every lookup a hit."""

    def __init__(self, weights: torch.Tensor) -> None:
        self.weights = weights
        self.counters = Counters()
        self.slots = len(weights)

    def gather(self, experts: torch.Tensor) -> Gathered:
        """Return the weights of `experts`."""
        self.count(experts.numel())
        return _split(self.weights, experts)

    def product(
        self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum over each row's experts; on a GPU nothing is gathered."""
        self.count(experts.numel())
        return self.apply(x, experts, weights)

    def apply(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Do what `product` does without counting."""
        if device.has_kernels(x):
            return slot_product(x, experts, weights, self.weights)
        return expert_product(x, *_split(self.weights, experts.flatten()), weights)

    def blobs(self, first: int, count: int) -> torch.Tensor:
        """Return a view of the device's own."""
        return self.weights[first : first + count]

    def forget(self) -> None:
        """Have nothing to bring in."""

    def check_integrity(self) -> None:
        """Have nothing that could be wrong."""

    def count(self, lookups: int) -> None:
        """Count `lookups` hits."""
        self.counters.count(lookups=lookups, misses=0, overflows=0, item_bytes=0)


class PooledExperts:
    """A pool of slots over all layers; what does not fit is read in place from host memory."""

    def __init__(self, host: torch.Tensor, slots: int, arena: Arena) -> None:
        self.host = host  # [N, 3I, H]
        self.slots = slots
        self.counters = Counters()
        shape = (slots, *host.shape[1:])
        self.pool = arena.take("expert slots", shape, host.dtype, lendable=True)
        table = arena.take("expert tables", (1, len(host)), torch.int32)
        owner = arena.take("expert tables", (1, slots), torch.int32)
        self.residency = Residency(make_victims("clock", 1, slots, arena.device), table, owner)

    def gather(self, experts: torch.Tensor) -> Gathered:
        """Return the weights of `experts`; the distinct ones are resolved in one call."""
        overflows = self._resolve(experts)
        slots = self.residency.slots_of(0, experts)
        gathered = _split(self.pool, slots.clamp_min(0))
        if overflows:
            in_place = (slots < 0).nonzero()[:, 0]
            wanted, order = torch.unique(experts[in_place], return_inverse=True)
            blobs = self._from_host(wanted)[order]
            rows = gathered[0].shape[1]
            gathered[0].index_copy_(0, in_place, blobs[:, :rows])
            gathered[1].index_copy_(0, in_place, blobs[:, rows:])
        return gathered

    def product(
        self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Return the weighted sum over each row's experts; a GPU reads them where they lie."""
        if device.has_kernels(x):
            self._resolve(experts)
            table = self.residency.table[0]
            return slot_product(x, experts, weights, self.pool, table=table, host=self.host)
        return expert_product(x, *self.gather(experts.flatten()), weights)

    def blobs(self, first: int, count: int) -> torch.Tensor:
        """Return a view of host memory."""
        return self.host[first : first + count]

    @property
    def holds_all(self) -> bool:
        """Return whether there is a slot for every expert."""
        return self.slots >= len(self.host)

    def fill(self) -> None:
        """Bring every expert in, each to the slot of its number; there must be one for each."""
        assert self.holds_all
        every = torch.arange(len(self.host), device=self.pool.device)
        self.residency.clear()
        self.residency.seed_all(every[None])
        self.pool[: len(self.host)].copy_(self.host, non_blocking=True)

    def forget(self) -> None:
        """Empty every slot."""
        self.residency.clear()

    def check_integrity(self) -> None:
        """Assert that the table and the owners of the pool agree."""
        self.residency.check_integrity()

    def _resolve(self, experts: torch.Tensor) -> int:
        """Bring the distinct `experts` in as far as slots reach; return how many stay out."""
        distinct = torch.unique(experts)
        before, admission = self.residency.resolve(0, distinct)
        misses = overflows = 0
        if admission is not None:
            self.pool.index_copy_(0, admission.slots, self._from_host(admission.pages))
            misses = int((before < 0).sum())
            overflows = misses - len(admission.pages)
        self.counters.count(
            lookups=len(distinct),
            misses=misses,
            overflows=overflows,
            item_bytes=self.host[0].nbytes,
        )
        return overflows

    def _from_host(self, experts: torch.Tensor) -> torch.Tensor:
        return self.host.index_select(0, experts.to(self.host.device)).to(self.pool.device)


def _split(weights: torch.Tensor, at: torch.Tensor) -> Gathered:
    """Return the two parts of `weights` [N, 3I, H] `at` some rows, each contiguous."""
    rows = weights.shape[1] // 3 * 2
    return weights[:, :rows].index_select(0, at), weights[:, rows:].index_select(0, at)
