"""The state of a session right behind its prompt, independent of how the session keeps it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """What a prompt leaves behind, in host memory and in the order of cells.

    Shapes: L layers, n prompt cells, K K/V heads, Q query heads, D head dimension, H hidden, r the
    last prompt rows. Ring, page size, selection, window and budget leave no trace in it, so that
    it can be restored into a session that has others, of the same model in the same type.
    """

    model_hash: str
    tokens: torch.Tensor  # [n], int32
    cells: torch.Tensor  # [L, n, 2, K, D]
    queries: torch.Tensor  # [L, r, Q, D], what the last rows asked for; they seed the ring
    hidden: torch.Tensor  # [1, H], behind the last row
    drafter_cells: torch.Tensor | None  # [n, 2, K, D], None where the session did not draft

    @property
    def prompt_cells(self) -> int:
        """Return n."""
        return self.cells.shape[1]
