"""What is on its way into slots, all of it device memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

PREFETCHED, USED, COUNTS = 0, 1, 2
"""Columns of `counters`: pages fetched ahead, and those of them that a resolve read in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """The last reservation of L layers, at most N slots each.

    Pages and slots are numbered over all layers, `layer * P + page` and `layer * S + slot`; a slot
    of -1 is an empty entry. `since` is the epoch of the resolve that the reservation stood behind.
    """

    pages: torch.Tensor  # [L, N]
    slots: torch.Tensor  # [L, N]
    since: torch.Tensor  # [L]
    counters: torch.Tensor  # [L, COUNTS]
    spare: torch.Tensor  # [L, 3, N], scratch

    def clear(self) -> None:
        """Forget the reservation; counters stay."""
        self.slots.fill_(-1)

    @classmethod
    def empty(cls, layers: int, count: int, device: torch.device) -> Pending:
        """Return a reservation of nothing."""
        return cls(
            pages=torch.zeros(layers, count, dtype=torch.int32, device=device),
            slots=torch.full((layers, count), -1, dtype=torch.int32, device=device),
            since=torch.zeros(layers, dtype=torch.int32, device=device),
            counters=torch.zeros(layers, COUNTS, dtype=torch.int64, device=device),
            spare=torch.zeros(layers, 3, count, dtype=torch.int32, device=device),
        )
