"""Decide what is resident: the page table, its inverse, and one resolve a layer.

Nothing here moves bytes; decisions come out as (page, slot) lists that somebody else carries
out. The same bookkeeping serves K/V pages (a pool per layer) and experts (one pool over all).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strata.kv.victims import VictimPolicy

NOT_RESIDENT = -1


@dataclass(frozen=True, slots=True)
class Admission:
    """Pages that got a slot and must be copied in from the host store, both [N]."""

    pages: torch.Tensor
    slots: torch.Tensor


class Residency:
    """Page table [L, P] and slot owners [L, S] of a session.

    Invariant: ``table[l, p] == s`` exactly where ``owner[l, s] == p``. Tables live on the
    device and are part of the session's ledger.
    """

    def __init__(self, victims: VictimPolicy, table: torch.Tensor, owner: torch.Tensor) -> None:
        self.table = table
        self.owner = owner
        self.layers, self.slots = owner.shape
        self._victims = victims
        self.clear()

    def clear(self) -> None:
        """Forget every page."""
        self.table.fill_(NOT_RESIDENT)
        self.owner.fill_(NOT_RESIDENT)
        self._victims.clear()
        self.filled = [0] * self.layers

    def slots_of(self, layer: int, pages: torch.Tensor) -> torch.Tensor:
        """Return the slots [N] of `pages`, NOT_RESIDENT where there is none."""
        return self.table[layer].index_select(0, pages).long()

    def resolve(
        self, layer: int, pages: torch.Tensor, *, keep_from: int | None = None
    ) -> tuple[torch.Tensor, Admission | None]:
        """Make `pages` (each once) resident as far as slots reach.

        Returns their slots before the resolve and what came in. No page of `pages` loses its
        slot, nor one numbered `keep_from` or more: a page born for drafts that were rejected must
        be there when the next window writes it. Pages that found no slot are read in place.
        """
        slots = self.slots_of(layer, pages)
        missed = slots < 0
        if not missed.any():
            self._victims.touch(layer, slots)
            return slots, None
        evictable = self.owner[layer] < (self.table.shape[1] if keep_from is None else keep_from)
        evictable.index_fill_(0, slots[~missed], False)
        admitted = self._admit(layer, pages[missed], evictable)
        self._victims.touch(layer, torch.cat([slots[~missed], admitted.slots]))
        return slots, admitted

    def admit_new(self, layer: int, page: int, *, first_tail: int, replace: bool) -> None:
        """Give the newborn `page` a slot; it has no content yet, so nothing is copied.

        Pages from `first_tail` on keep their slots. With `replace` the victim policy chooses
        among the others. Without (dense reading) the newest page that left the tail gives way,
        so that the prompt's newest pages stay.
        """
        owner = self.owner[layer]
        evictable = owner < first_tail
        pages = torch.tensor([page], device=owner.device)
        if replace or self.filled[layer] < self.slots:
            self._victims.touch(layer, self._admit(layer, pages, evictable).slots)
            return
        slot = torch.where(evictable, owner, -2).argmax(0, keepdim=True)
        self._assign(layer, pages, slot)

    def admit_rest(self, first: int) -> None:
        """Give the newborn pages from `first` to the last theirs, one slot each, in every layer."""
        layers, pages = self.table.shape
        assert self.filled == [first] * layers, "every page so far has a slot"
        rest = torch.arange(first, pages, dtype=self.table.dtype, device=self.table.device)
        self.table[:, first:] = rest
        self.owner[:, first:pages] = rest
        self.filled = [pages] * layers

    def seed(self, layer: int, pages: torch.Tensor) -> Admission:
        """Fill an empty layer with `pages`, at most as many as there are slots."""
        assert self.filled[layer] == 0, "seed fills an empty layer"
        assert len(pages) <= self.slots
        slots = torch.arange(len(pages), device=pages.device)
        self.filled[layer] = len(pages)
        self._assign(layer, pages, slots)
        return Admission(pages, slots)

    def seed_all(self, pages: torch.Tensor) -> torch.Tensor:
        """Fill empty layers with `pages` [L, N], each once a layer; return their slots [N]."""
        assert not any(self.filled), "seed_all fills empty layers"
        count = pages.shape[1]
        assert count <= self.slots
        slots = torch.arange(count, device=pages.device)
        self.table.scatter_(1, pages, slots.to(self.table.dtype).expand(self.layers, -1))
        self.owner[:, :count] = pages
        self.filled = [count] * self.layers
        return slots

    def _admit(self, layer: int, pages: torch.Tensor, evictable: torch.Tensor) -> Admission:
        filled, total = self.filled[layer], self.slots
        free = torch.arange(filled, min(total, filled + len(pages)), device=pages.device)
        self.filled[layer] += len(free)
        if len(free) < len(pages):
            evictable[filled:] = False
            victims = self._victims.choose(layer, evictable, len(pages) - len(free))
            slots = torch.cat([free, victims])
        else:
            slots = free
        pages = pages[: len(slots)]
        self._assign(layer, pages, slots)
        return Admission(pages, slots)

    def _assign(self, layer: int, pages: torch.Tensor, slots: torch.Tensor) -> None:
        table, owner = self.table[layer], self.owner[layer]
        evicted = owner[slots]
        table.index_fill_(0, evicted[evicted >= 0].long(), NOT_RESIDENT)
        table.index_copy_(0, pages, slots.to(table.dtype))
        owner.index_copy_(0, slots, pages.to(owner.dtype))

    def check_integrity(self) -> None:
        """Assert that the table and the owners are each other's inverse, slots filled in order."""
        for layer in range(self.layers):
            table, owner = self.table[layer], self.owner[layer]
            resident = (table >= 0).nonzero()[:, 0]
            held = (owner >= 0).nonzero()[:, 0]
            assert len(resident) == len(held) <= self.slots
            assert torch.equal(owner[table[resident].long()].long(), resident)
            assert torch.equal(table[owner[held].long()].long(), held)
            assert torch.equal(held, torch.arange(self.filled[layer], device=held.device))
            for name, memory in self._victims.state().items():
                assert not memory[layer].isnan().any(), name
