"""Prefetch in plain torch; the host reads where the row stands, and copies go through it."""

from __future__ import annotations

import torch

from strata.kernels.experts import ref as experts_ref
from strata.kernels.prefetch.state import PREFETCHED, USED, Pending
from strata.kernels.resolve.ref import choose_victims
from strata.kernels.resolve.state import EPOCH, FILLED, ResolveState
from strata.lm.linear import Linear


def forecast_pages(
    scores: torch.Tensor, own: torch.Tensor, table: torch.Tensor, out: torch.Tensor, *, tail: int
) -> None:
    """Sort the scores of what has no slot."""
    out.fill_(-1)
    last = int(own) - tail
    for layer, row in enumerate(scores.flip(0)):
        absent = (table[layer, 1 : last + 1] < 0).nonzero()[:, 0] + 1
        order = row[absent].sort(descending=True, stable=True).indices[: out.shape[1]]
        out[layer, : len(order)] = absent[order]


def forecast_experts(x: torch.Tensor, router: Linear, ids: torch.Tensor) -> None:
    """Route as the layer itself would."""
    ids.copy_(experts_ref.route(router(x), count=ids.shape[1], normalise=False)[0])


def reserve(
    state: ResolveState,
    wanted: torch.Tensor,
    out: Pending,
    *,
    base: int,
    own: torch.Tensor | None,
    tail: int,
) -> None:
    """Take slots layer by layer; see the package for the contract."""
    pages, slots = state.table.shape[1], state.owner.shape[1]
    limit = pages if own is None else int(own) - tail + 1
    for layer, listed in enumerate(wanted):
        _count_used(state, out, layer)
        table, owner, scalars = state.table[layer], state.owner[layer], state.scalars[layer]
        named = dict.fromkeys(page + base for page in listed.tolist() if page >= 0)
        absent = [page for page in named if table[page] < 0][: out.slots.shape[1]]
        filled, epoch = int(scalars[FILLED]), int(scalars[EPOCH])
        free = torch.arange(filled, min(slots, filled + len(absent)), device=owner.device)
        need = len(absent) - len(free)
        evictable = (owner >= 0) & (owner < limit) & (state.stamp[layer] != epoch)
        victims = choose_victims(state, layer, evictable, need) if need else free[:0]
        taken = torch.cat([free, victims])
        evicted = owner[victims].long()
        table[evicted] = -1
        owner[taken] = -1
        state.stamp[layer, taken] = epoch
        scalars[FILLED] = filled + len(free)
        out.slots[layer] = -1
        out.slots[layer, : len(taken)] = (taken + layer * slots).to(out.slots.dtype)
        admitted = torch.tensor(absent[: len(taken)], dtype=out.pages.dtype)
        out.pages[layer, : len(taken)] = admitted.to(out.pages.device) + layer * pages
        out.since[layer] = epoch
        out.counters[layer, PREFETCHED] += len(taken)


def _count_used(state: ResolveState, out: Pending, layer: int) -> None:
    there = out.slots[layer] >= 0
    page = out.pages[layer][there] - layer * state.table.shape[1]
    slot = (out.slots[layer][there] - layer * state.owner.shape[1]).long()
    read = state.stamp[layer][slot] > out.since[layer]
    out.counters[layer, USED] += (read & (state.owner[layer][slot] == page)).sum()


def fetch(host: torch.Tensor, pool: torch.Tensor, pending: Pending) -> None:
    """Copy through a temporary."""
    there = pending.slots >= 0
    pages, slots = pending.pages[there].long(), pending.slots[there].long()
    pool.index_copy_(0, slots, host.index_select(0, pages.to(host.device)).to(pool.device))


def publish(state: ResolveState, pending: Pending) -> None:
    """Write tables and owners of every layer."""
    there = pending.slots >= 0
    pages, slots = pending.pages[there].long(), pending.slots[there].long()
    table, owner, memory = (t.view(-1) for t in (state.table, state.owner, state.memory))
    table[pages] = (slots % state.owner.shape[1]).to(table.dtype)
    owner[slots] = (pages % state.table.shape[1]).to(owner.dtype)
    memory[slots] = 0 if state.victims == "clock" else -torch.inf
