"""Page scoring and selection: contract and reference in `ref`, two launches on a GPU.

Given equal scores both choose the same pages; scores differ by the order of a float32 sum.
"""

from __future__ import annotations

import torch

from strata.kernels import device
from strata.kernels.select import ref
from strata.kernels.select.ref import count_selected, update_bounds

__all__ = ["MAX_FUSED_PAGES", "count_selected", "select_pages", "update_bounds"]

MAX_FUSED_PAGES = 16_384
"""Pages whose scores one program holds in registers."""


def select_pages(
    q: torch.Tensor, bounds: torch.Tensor, own_page: torch.Tensor, *, count: int, tail: int
) -> torch.Tensor:
    """Return the `count` pages [R, M] that each row of `q` [R, K, G, D] reads, ascending.

    See `ref.select_pages`. On a GPU nothing is read back by the host; a session of more than
    16,384 pages takes the reference.
    """
    if device.has_kernels(q) and bounds.shape[1] <= MAX_FUSED_PAGES:
        from strata.kernels.select import triton

        return triton.select_pages(q, bounds, own_page, count=count, tail=tail)
    return ref.select_pages(q, bounds, own_page, count=count, tail=tail)
