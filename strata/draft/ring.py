"""The drafter's own K/V: every committed cell on the host, the last ones in a modulo ring.

Cell i lies at ring position i mod capacity. A window of W cells stays readable while a round
writes at most `WINDOW_SLACK_CELLS` speculative cells ahead of the committed end, because the
capacity is at least W + WINDOW_SLACK_CELLS: what those writes overwrite is older than any
window that can still be read. Rejected cells need no undoing; they are overwritten in place.
"""

from __future__ import annotations

import torch

from strata.arena import Arena
from strata.config import WINDOW_SLACK_CELLS


class DrafterRing:
    """K/V cells [2, K, D] of the drafter's one layer."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        window: int,
        max_cells: int,
        dtype: torch.dtype,
        arena: Arena,
    ) -> None:
        self.window = min(window, max_cells) if window else max_cells
        self.capacity = self.window + WINDOW_SLACK_CELLS
        self._ring = arena.take("drafter ring", (self.capacity, *shape), dtype)
        self._host = torch.zeros(
            max_cells + WINDOW_SLACK_CELLS,
            *shape,
            dtype=dtype,
            pin_memory=arena.device.type == "cuda",
        )

    def write(self, start: int, cells: torch.Tensor, *, committed: bool) -> None:
        """Write `cells` [n, 2, K, D] as cells `start` and on; committed ones reach the host too."""
        n = len(cells)
        if committed:
            self._host[start : start + n] = cells
        keep = min(n, self.capacity)
        at = torch.arange(start + n - keep, start + n, device=cells.device) % self.capacity
        self._ring.index_copy_(0, at, cells[n - keep :])

    def read(self, position: int) -> torch.Tensor:
        """Return the window up to and with cell `position`, oldest first, as [2, K, n, D]."""
        first = max(1, position - self.window + 1)
        at = torch.arange(first, position + 1, device=self._ring.device) % self.capacity
        return self._ring.index_select(0, at).permute(1, 2, 0, 3)

    def refill(self, cells: int) -> None:
        """Fill the ring from the host store so that cell `cells` can be written next."""
        first = max(1, cells - self.capacity)
        self.write(first, self._host[first:cells].to(self._ring.device), committed=False)


def ring_shape(window: int, max_cells: int, kv_heads: int, head_dim: int) -> tuple[int, ...]:
    """Return the shape of the ring tensor that `DrafterRing` carves."""
    readable = min(window, max_cells) if window else max_cells
    return (readable + WINDOW_SLACK_CELLS, 2, kv_heads, head_dim)
