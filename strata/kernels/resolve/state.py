"""What a resolve reads and changes, all of it device memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from strata.config import Victims

FILLED, TIME, EPOCH, SCALARS = 0, 1, 2, 4
"""Columns of `scalars`: slots ever filled; the clock's hand or LRFU's time; the last epoch."""
LOOKUPS, HITS, MISSES, OVERFLOWS, COUNTS = 0, 1, 2, 3, 4
"""Columns of `counters`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveState:
    """Residency of L layers with P pages and S slots each; one layer of experts is a layer too.

    Slots below `scalars[:, FILLED]` have an owner, the others never had one. A slot whose stamp
    equals the epoch of a resolve was selected by it. `seen` is scratch of one resolve, `spare` of
    one birth.
    """

    table: torch.Tensor  # [L, P], slot or -1
    owner: torch.Tensor  # [L, S], page or -1
    memory: torch.Tensor  # [L, S], uint8 reference bits (clock) or float64 log2 weights (lrfu)
    stamp: torch.Tensor  # [L, S]
    seen: torch.Tensor  # [L, P]
    spare: torch.Tensor  # [L, 2]
    scalars: torch.Tensor  # [L, SCALARS]
    counters: torch.Tensor  # [L, COUNTS]

    @property
    def victims(self) -> Victims:
        """Return the policy that `memory` is of."""
        return "clock" if self.memory.dtype == torch.uint8 else "lrfu"

    def start(self, filled: Sequence[int]) -> None:
        """Forget every read; of each layer the first `filled` slots have owners. Counters stay."""
        self.memory.fill_(0 if self.victims == "clock" else -torch.inf)
        for tensor in (self.stamp, self.seen, self.scalars):
            tensor.zero_()
        self.scalars[:, FILLED] = torch.tensor(filled, device=self.scalars.device)

    @classmethod
    def over(cls, table: torch.Tensor, owner: torch.Tensor, victims: Victims) -> ResolveState:
        """Return a state over tables that are somebody else's; `start` comes before a resolve."""
        layers, device = len(table), table.device
        memory = torch.uint8 if victims == "clock" else torch.float64
        return cls(
            table=table,
            owner=owner,
            memory=torch.zeros_like(owner, dtype=memory),
            stamp=torch.zeros_like(owner),
            seen=torch.zeros_like(table),
            spare=torch.zeros(layers, 2, dtype=torch.int32, device=device),
            scalars=torch.zeros(layers, SCALARS, dtype=torch.int32, device=device),
            counters=torch.zeros(layers, COUNTS, dtype=torch.int64, device=device),
        )

    @classmethod
    def empty(
        cls, layers: int, pages: int, slots: int, victims: Victims, device: torch.device
    ) -> ResolveState:
        """Return a state without pages in memory of its own."""
        table = torch.full((layers, pages), -1, dtype=torch.int32, device=device)
        owner = torch.full((layers, slots), -1, dtype=torch.int32, device=device)
        state = cls.over(table, owner, victims)
        state.start([0] * layers)
        return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """What a resolve let in, for the gather; N is 1, as there is one layer.

    The first `count[:, 0]` entries are pages and their new slots. `pages` goes on to `count[:, 1]`
    with the misses that found no slot and are read in place; what follows is undefined.
    """

    pages: torch.Tensor  # [N, room]
    slots: torch.Tensor  # [N, room]
    count: torch.Tensor  # [N, 2], admitted and missed
    spare: torch.Tensor  # [N, 2, room], scratch

    @classmethod
    def empty(cls, layers: int, room: int, device: torch.device) -> Admitted:
        """Return lists with room for the distinct pages of one resolve a layer."""
        return cls(
            pages=torch.zeros(layers, room, dtype=torch.int32, device=device),
            slots=torch.zeros(layers, room, dtype=torch.int32, device=device),
            count=torch.zeros(layers, 2, dtype=torch.int32, device=device),
            spare=torch.zeros(layers, 2, room, dtype=torch.int32, device=device),
        )
