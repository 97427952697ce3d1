"""Attention of one drafter row over the last W cells of its modulo ring, in splits.

Shapes: K K/V heads, G query heads per K/V head, D head dimension, N splits. Contract here, plain
torch in `ref`, one launch on a GPU.
"""

from __future__ import annotations

import torch

from strata.kernels import device
from strata.kernels.paged_attention import Splits
from strata.kernels.window_attention import ref

__all__ = ["attend_window", "window_shape"]

WINDOW_SPLIT = 64
"""Cells of a split."""


def window_shape(heads: int, dim: int, window: int) -> tuple[int, ...]:
    """Return the shape [Q, N, D] of `Splits.sums` over a window."""
    return (heads, -(-window // WINDOW_SPLIT), dim)


def attend_window(
    q: torch.Tensor,
    ring: torch.Tensor,
    position: torch.Tensor,
    window: int,
    out: tuple[torch.Tensor, torch.Tensor],
    *,
    row: torch.Tensor | None = None,
) -> Splits:
    """Return the splits of one row's attention over the `window` cells up to its own.

    The row is `q` [R, K, G, D] at `row` ([1], int64), 0 without. Its cell is `position` ([1],
    int64); cell i lies at `ring` [capacity, 2, K, D] place i modulo the capacity, and there is no
    cell 0. All are read when the kernel runs. `out` are buffers for sums and stats.
    """
    if device.has_kernels(q):
        from strata.kernels.window_attention import triton

        return triton.attend_window(q, ring, position, window, out, row=row)
    return ref.attend_window(q, ring, position, window, row=row)
