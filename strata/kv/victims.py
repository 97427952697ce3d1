"""Whose slot is taken when a page must come in: second chance, or recency and frequency.

Both policies see one layer at a time and answer with slots; they never see pages, so nothing
about content or position can enter the choice.
"""

from __future__ import annotations

from typing import Protocol

import torch

from strata.config import Victims
from strata.kernels.resolve.ref import add_read, lightest, sweep


class VictimPolicy(Protocol):
    """Choose victims among the slots of a layer."""

    def touch(self, layer: int, slots: torch.Tensor) -> None:
        """Note that `slots` (each once) were read by a resolve of `layer`."""

    def choose(self, layer: int, evictable: torch.Tensor, count: int) -> torch.Tensor:
        """Return at most `count` slots of `evictable` [S] (bool), in the order they are given."""

    def clear(self) -> None:
        """Forget every read, so that a ring that is seeded again repeats what it did."""

    def state(self) -> dict[str, torch.Tensor]:
        """Return the tensors that hold the policy's memory, for integrity checks."""


class Clock:
    """Second chance (Corbato, 1968): a hand sweeps, a slot read since the last sweep is passed."""

    def __init__(self, layers: int, slots: int, device: torch.device) -> None:
        self._referenced = torch.zeros(layers, slots, dtype=torch.bool, device=device)
        self._hand = [0] * layers

    def touch(self, layer: int, slots: torch.Tensor) -> None:
        """Give `slots` a second chance."""
        self._referenced[layer].index_fill_(0, slots, True)

    def choose(self, layer: int, evictable: torch.Tensor, count: int) -> torch.Tensor:
        """Sweep from the hand; evictable slots passed with their bit set lose it.

        If one turn does not find `count`, the second takes the slots that the first spared.
        """
        bits, hand = self._referenced[layer], self._hand[layer]
        victims, self._hand[layer] = sweep(bits, hand, evictable, count)
        return victims

    def clear(self) -> None:
        """Clear every bit and put the hands back."""
        self._referenced.fill_(False)
        self._hand = [0] * len(self._hand)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the reference bits [L, S]."""
        return {"referenced": self._referenced}


class Lrfu:
    """Least recently / frequently used (Lee et al., 2001): each read weighs 2^(-decay * age)."""

    def __init__(self, layers: int, slots: int, device: torch.device) -> None:
        self._weight = torch.full((layers, slots), -torch.inf, dtype=torch.float64, device=device)
        self._time = [0] * layers

    def touch(self, layer: int, slots: torch.Tensor) -> None:
        """Add a read of now to each slot's weight."""
        self._time[layer] += 1
        add_read(self._weight[layer], slots, self._time[layer])

    def choose(self, layer: int, evictable: torch.Tensor, count: int) -> torch.Tensor:
        """Return the lightest evictable slots, by number; they forget their past."""
        return lightest(self._weight[layer], evictable, count)

    def clear(self) -> None:
        """Clear every weight and start time again."""
        self._weight.fill_(-torch.inf)
        self._time = [0] * len(self._time)

    def state(self) -> dict[str, torch.Tensor]:
        """Return the weights [L, S] (float64, log2 at time zero)."""
        return {"weight": self._weight}


def make_victims(name: Victims, layers: int, slots: int, device: torch.device) -> VictimPolicy:
    """Return the policy that `--kv-evict` names."""
    policy = Clock if name == "clock" else Lrfu
    return policy(layers, slots, device)
