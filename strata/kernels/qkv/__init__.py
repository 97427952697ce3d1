"""Queries and new cells of normed rows: products, q/k norms, rotary, and where the cells go.

Shapes: R rows, H hidden, Q query heads, K K/V heads, D head dimension, C cells a page. Contract
here, plain torch in `ref`, one launch on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strata.kernels import device
from strata.kernels.qkv import ref
from strata.lm.layers import Rotary
from strata.lm.weights import AttentionWeights

__all__ = ["CellStore", "project_cells"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellStore:
    """Where one layer's cells live: pages of C cells behind a table, or a ring of single cells.

    Page p of `host` is its planes 2K * p to 2K * (p + 1) - 1, [C, D] each, and a slot of `pool`
    likewise. With a `table` [P] page p has slot `table[p]`, none where that is negative. Without,
    slot = page modulo `capacity`, the slots of the pool.
    """

    pool: torch.Tensor  # [S * 2K, C, D]
    host: torch.Tensor | None  # [P * 2K, C, D]; None keeps cells out of the host store
    table: torch.Tensor | None  # [P], int32

    @property
    def page_cells(self) -> int:
        """Return C."""
        return self.pool.shape[1]

    def capacity(self, kv_heads: int) -> int:
        """Return S."""
        return len(self.pool) // (2 * kv_heads)


def project_cells(
    normed: torch.Tensor,
    w: AttentionWeights,
    rotary: Rotary,
    positions: torch.Tensor,
    store: CellStore,
    *,
    eps: float,
    q: torch.Tensor,
    cells: torch.Tensor,
) -> None:
    """Write queries into `q` [R, Q, D] and new cells into `cells` [R, 2, K, D] and the store.

    `normed` [R, H] are the layer's normed inputs, `positions` [R] (int64, read when the kernel
    runs) say which cells they are. A cell goes to the host store, and to its page's slot if it has
    one.
    """
    if device.has_kernels(normed):
        from strata.kernels.qkv import triton

        triton.project_cells(
            normed,
            w.qkv.weight,
            w.qk_norm,
            rotary.inverse,
            positions,
            store,
            eps=eps,
            q=q,
            cells=cells,
        )
    else:
        ref.project_cells(normed, w, rotary, positions, store, eps=eps, q=q, cells=cells)
