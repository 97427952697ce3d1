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
from strata.kernels.append import append_cells


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
        self.cells = arena.take("drafter ring", ring_shape(window, max_cells, *shape[1:]), dtype)
        self.capacity = len(self.cells)
        self.window = self.capacity - WINDOW_SLACK_CELLS
        self.host = torch.zeros(
            max_cells + WINDOW_SLACK_CELLS,
            *shape,
            dtype=dtype,
            pin_memory=arena.device.type == "cuda",
        )

    def write(self, positions: torch.Tensor, cells: torch.Tensor, *, committed: bool) -> None:
        """Write `cells` [n, 2, K, D] at consecutive `positions` [n]; committed ones reach the host.

        Positions are read on the device, so that a captured graph can write wherever it stands.
        """
        n = len(cells)
        if committed:
            planes = cells.shape[1] * cells.shape[2]
            rows = positions[:, None] * planes + torch.arange(planes, device=positions.device)
            append_cells(cells, self.host, rows.flatten())
        keep = min(n, self.capacity)
        self.cells.index_copy_(0, positions[n - keep :] % self.capacity, cells[n - keep :])

    def place(self, first: int, cells: torch.Tensor) -> None:
        """Write committed `cells` [n, 2, K, D], the host's or the device's, from cell `first` on.

        The host store is not written. Nothing waits for the host.
        """
        kept = cells[max(0, len(cells) - self.capacity) :]
        at = (first + len(cells) - len(kept)) % self.capacity
        until_end = min(len(kept), self.capacity - at)
        self.cells[at : at + until_end].copy_(kept[:until_end], non_blocking=True)
        self.cells[: len(kept) - until_end].copy_(kept[until_end:], non_blocking=True)

    def read(self, position: int) -> torch.Tensor:
        """Return the window up to and with cell `position`, oldest first, as [2, K, n, D]."""
        first = max(1, position - self.window + 1)
        at = torch.arange(first, position + 1, device=self.cells.device) % self.capacity
        return self.cells.index_select(0, at).permute(1, 2, 0, 3)

    def committed(self, cells: int) -> torch.Tensor:
        """Return a copy of the first `cells` committed cells, cell 0 included, on the CPU."""
        if self.cells.is_cuda:
            torch.cuda.synchronize(self.cells.device)
        return self.host[:cells].clone()

    def load(self, cells: torch.Tensor) -> None:
        """Take `cells` [n, 2, K, D] for the first n committed ones and fill the ring."""
        self.host[: len(cells)] = cells
        self.refill(len(cells))

    def refill(self, cells: int) -> None:
        """Fill the ring from the host store so that cell `cells` can be written next."""
        first = max(1, cells - self.capacity)
        self.place(first, self.host[first:cells])


def ring_shape(window: int, max_cells: int, kv_heads: int, head_dim: int) -> tuple[int, ...]:
    """Return the shape of the ring tensor that `DrafterRing` carves."""
    readable = min(window, max_cells) if window else max_cells
    return (readable + WINDOW_SLACK_CELLS, 2, kv_heads, head_dim)
