"""Residency of one layer in plain torch: who is a victim, and what a resolve changes.

Shapes: P pages, S slots, N pages asked for. The choice of victims is shared with the eager path
(`strata.kv.victims`), so that there is one definition of each policy.
"""

from __future__ import annotations

import torch

from strata.kernels.resolve.state import EPOCH, FILLED, TIME, Admitted, ResolveState

LRFU_DECAY = 0.05
"""Weight halves every 1 / LRFU_DECAY = 20 resolves of a layer."""


def sweep(
    referenced: torch.Tensor, hand: int, evictable: torch.Tensor, count: int
) -> tuple[torch.Tensor, int]:
    """Return at most `count` victims of a second-chance sweep and where the hand stands then.

    The sweep goes round `referenced` [S] (changed in place) from `hand` over `evictable` [S]
    (Corbato, 1968). Slots passed with their bit set lose it; if one turn does not find `count`, the
    second takes the slots that the first spared.
    """
    slots = evictable.nonzero()[:, 0]
    order = slots.roll(-int((slots < hand).sum()))
    spared = referenced[order] > 0
    victims = order[~spared][:count]
    if len(victims) < count:
        referenced[order] = 0
        victims = torch.cat([victims, order[spared][: count - len(victims)]])
    else:
        distance = (order - hand) % len(evictable)
        passed = (victims[-1] - hand) % len(evictable)
        referenced[order[distance <= passed]] = 0
    if len(victims):
        hand = (int(victims[-1]) + 1) % len(evictable)
    return victims, hand


def lightest(weight: torch.Tensor, evictable: torch.Tensor, count: int) -> torch.Tensor:
    """Return the `count` lightest of the evictable slots, by number; equal ones from the lowest.

    They forget their past: their `weight` [S] becomes minus infinity.
    """
    candidates = evictable.nonzero()[:, 0]
    order = weight[candidates].argsort(stable=True)[:count]
    victims = candidates[order.sort().values]
    weight.index_fill_(0, victims, -torch.inf)
    return victims


def add_read(weight: torch.Tensor, slots: torch.Tensor, time: int) -> None:
    """Add a read at `time` to the weights of `slots`, each 2^(-decay * age) (Lee et al., 2001).

    The combined weight C is kept as log2(C) + decay * time, which orders slots the same way at any
    later time, so that nothing needs aging.
    """
    now = torch.tensor(LRFU_DECAY * time, dtype=torch.float64, device=weight.device)
    old = weight[slots]
    larger, smaller = torch.maximum(old, now), torch.minimum(old, now)
    weight.index_copy_(0, slots, larger + torch.log2(1 + torch.exp2(smaller - larger)))


def resolve(
    state: ResolveState,
    pages: torch.Tensor,
    out: Admitted,
    *,
    layer: int,
    keep_from: torch.Tensor | None = None,
    base: int = 0,
    count: bool = True,
) -> None:
    """Make `pages` resident as far as slots reach; see the package for the contract.

    Without `count` the counters stand still: a newborn page needs a slot but crosses no bus.
    """
    limit = state.table.shape[1] if keep_from is None else int(keep_from)
    asked = torch.unique(pages[pages >= 0].long()) + base
    table, owner, scalars = state.table[layer], state.owner[layer], state.scalars[layer]
    slots = table[asked].long()
    hit = slots >= 0
    missed = asked[~hit]
    evictable = (owner >= 0) & (owner < limit)
    evictable[slots[hit]] = False
    filled, total = int(scalars[FILLED]), len(owner)
    free = torch.arange(filled, min(total, filled + len(missed)), device=owner.device)
    need = len(missed) - len(free)
    taken = torch.cat([free, choose_victims(state, layer, evictable, need)]) if need else free
    admitted = missed[: len(taken)]
    evicted = owner[taken]
    table[evicted[evicted >= 0].long()] = -1
    table[admitted] = taken.to(table.dtype)
    owner[taken] = admitted.to(owner.dtype)
    scalars[FILLED] = filled + len(free)
    scalars[EPOCH] += 1
    selected = torch.cat([slots[hit], taken])
    state.stamp[layer, selected] = scalars[EPOCH]
    _touch(state, layer, selected)
    if count:
        overflows = len(missed) - len(taken)
        counts = [len(asked), len(asked) - len(missed), len(missed), overflows]
        state.counters[layer] += torch.tensor(counts, device=owner.device)
    out.pages[0, : len(missed)] = missed.to(out.pages.dtype)
    out.slots[0, : len(taken)] = taken.to(out.slots.dtype)
    out.count[0] = torch.tensor([len(taken), len(missed)], device=owner.device)


def choose_victims(
    state: ResolveState, layer: int, evictable: torch.Tensor, count: int
) -> torch.Tensor:
    """Return at most `count` victims among the `evictable` slots [S], as the policy of `state`."""
    memory, scalars = state.memory[layer], state.scalars[layer]
    if state.victims == "lrfu":
        return lightest(memory, evictable, count)
    victims, hand = sweep(memory, int(scalars[TIME]), evictable, count)
    scalars[TIME] = hand
    return victims


def _touch(state: ResolveState, layer: int, slots: torch.Tensor) -> None:
    memory, scalars = state.memory[layer], state.scalars[layer]
    if state.victims == "clock":
        memory[slots] = 1
        return
    scalars[TIME] += 1
    add_read(memory, slots, int(scalars[TIME]))
