"""Queries and new cells of normed rows: products, q/k norms, rotary, and where the cells go.

Shapes: R rows, H hidden, Q query heads, K K/V heads, D head dimension, C cells a page. Contract
here, plain torch in `ref`, one launch on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strata.kernels import device
from strata.kernels.qkv import ref
from strata.kernels.wide import is_wide, split_count
from strata.lm.layers import Rotary
from strata.lm.weights import AttentionWeights

__all__ = ["CellStore", "part_floats", "project_cells"]


def part_floats(hidden: int, heads: int, dim: int) -> int:
    """Return what a row's programs hand to each other, in float32; `heads` are Q + 2K."""
    return heads * dim * split_count(hidden) if is_wide(hidden) else 0


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
    parts: torch.Tensor,
    counter: torch.Tensor,
) -> None:
    """Write queries into `q` [R, Q, D] and new cells into `cells` [R, 2, K, D] and the store.

    `normed` [R, H] are the layer's normed inputs, `positions` [R] (int64, read when the kernel
    runs) say which cells they are. A cell goes to the host store, and to its page's slot if it has
    one. `parts` [R, `part_floats`] float32 at least is scratch, `counter` (`wide.counter_shape`,
    int32) is zero before and after.
    """
    if not device.has_kernels(normed):
        ref.project_cells(normed, w, rotary, positions, store, eps=eps, q=q, cells=cells)
        return
    from strata.kernels.qkv import triton, wide

    args = (normed, w.qkv.weight, w.qk_norm, rotary.inverse, positions, store)
    if is_wide(normed.shape[1]):
        wide.project_cells(*args, eps=eps, q=q, cells=cells, parts=parts, counter=counter)
    else:
        triton.project_cells(*args, eps=eps, q=q, cells=cells)
