"""Page scoring and selection: contract and reference in `ref`, two launches on a GPU.

Given equal scores both choose the same pages; scores differ by the order of a float32 sum.
"""

from __future__ import annotations

import torch

from strata.kernels import device
from strata.kernels.select import ref
from strata.kernels.select.ref import count_selected, update_bounds

__all__ = [
    "MAX_FUSED_PAGES",
    "bound_pages",
    "count_selected",
    "select_pages",
    "update_bounds",
    "widen_bounds",
]

MAX_FUSED_PAGES = 16_384
"""Pages whose scores one program holds in registers."""


def select_pages(
    q: torch.Tensor,
    bounds: torch.Tensor,
    own_page: torch.Tensor,
    *,
    count: int,
    tail: int,
    out: torch.Tensor | None = None,
    scores: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the `count` pages [R, M] that each row of `q` [R, K, G, D] reads, ascending.

    See `ref.select_pages`. On a GPU nothing is read back by the host; a session of more than
    16,384 pages takes the reference. `out` [R, M] (any integer type) is a kernel's buffer where
    launches are captured; `scores` [R, P] float32 is given what older pages score.
    """
    if device.has_kernels(q) and bounds.shape[1] <= MAX_FUSED_PAGES:
        from strata.kernels.select import triton

        return triton.select_pages(
            q, bounds, own_page, count=count, tail=tail, out=out, scores=scores
        )
    return ref.select_pages(q, bounds, own_page, count=count, tail=tail, out=scores)


def bound_pages(
    bounds: torch.Tensor, pages: torch.Tensor, *, first_page: int, cells: range
) -> None:
    """Give `bounds` [K, P, 2D] of a layer what the keys of new `cells` say, a prompt's piece.

    `pages` [N, 2K, C, D] holds the cells and begins with page `first_page`. A page whose first cell
    is new forgets what its bounds were; an earlier one widens.
    """
    if device.has_kernels(bounds):
        from strata.kernels.select import triton

        triton.bound_pages(bounds, pages, first_page=first_page, cells=cells)
    else:
        ref.bound_pages(bounds, pages, first_page=first_page, cells=cells)


def widen_bounds(
    bounds: torch.Tensor,
    cells: torch.Tensor,
    positions: torch.Tensor,
    accepted: torch.Tensor,
    *,
    page_cells: int,
) -> None:
    """Widen `bounds` [L, K, P, 2D] of every layer by the keys of a window's accepted rows.

    `cells` is [L, R, 2, K, D], keys first; row r stands at `positions`[r], an ascending list of at
    least R; rows 0 .. `accepted` (one number) count, the others leave no trace. The first cell of a
    page replaces what its bounds were, so nobody resets a newborn page. `positions` and `accepted`
    are read on the device.
    """
    if device.has_kernels(bounds):
        from strata.kernels.select import triton

        triton.widen_bounds(bounds, cells, positions, accepted, page_cells=page_cells)
    else:
        ref.widen_bounds(bounds, cells, positions, accepted, page_cells=page_cells)
