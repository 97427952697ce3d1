"""What the engine asks of a drafter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Pick = Callable[[torch.Tensor, int], torch.Tensor]
"""(logits [1, V], position of the token to draw) -> its id [1]."""


class Drafter(Protocol):
    """Propose tokens behind the last known one; told every verified token, in order."""

    def observe(self, tokens: torch.Tensor, hidden: torch.Tensor) -> None:
        """Take verified `tokens` [n] and, for each, the main model's hidden state before it [n, H].

        Cell i of the drafter pairs token i with the hidden state of cell i - 1; there is no
        cell 0, so the first token of a prompt is never observed.
        """

    def propose(self, count: int, pick: Pick, min_p: float) -> list[int]:
        """Return at most `count` tokens; stop before one whose probability is under `min_p`."""

    def park(self) -> torch.Tensor | None:
        """Return the cells behind a prompt of n tokens [n, 2, K, D] on the CPU, None for none."""

    def restore(self, cells: torch.Tensor | None) -> None:
        """Take over parked `cells`; raise RuntimeError where they are needed and None."""

    def truncate(self, cells: int) -> None:
        """Forget every cell from `cells` on and refill the ring from the host store."""
