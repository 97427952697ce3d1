"""Attention of 1 to 8 query rows over K/V pages that lie in the pool or in the host store.

Shapes: R rows, K K/V heads, G query heads per K/V head, D head dimension, C cells a page, P pages,
S slots, M pages a row reads. A page is 2K consecutive planes [C, D]: K of every head, then V.
`README.md` has the maths, the splits and the bytes moved.
"""

from __future__ import annotations

import torch

from strata.kernels import device
from strata.kernels.paged_attention import ref
from strata.kernels.paged_attention.splits import Splits

__all__ = [
    "MAX_ROWS",
    "Splits",
    "attend_dense",
    "attend_selected",
    "split_attention",
    "split_shape",
    "supports",
]

MAX_ROWS = 8
"""Rows of a call at most; query tiles are padded to it, whatever the rows of a call."""
MAX_GROUP = 16
SPLIT_CELLS = 128
"""Cells of a split, rounded down to whole pages: at 1K cells 8 programs a head share the work.

Of heads above 64 values half as many: a split is one block of cells then (at 1K 4.5 us instead of
7.8, at 128K 111 instead of 134, 32 heads of 128 on an H200)."""
HEAD_DIMS = range(16, 129)
DTYPES = (torch.bfloat16, torch.float32)


def supports(*, head_dim: int, dtype: torch.dtype, group: int = 1) -> bool:
    """Return whether the kernels take such K/V; any other shape is served by the reference."""
    return head_dim in HEAD_DIMS and group <= MAX_GROUP and dtype in DTYPES


def attend_dense(
    q: torch.Tensor,
    pool: torch.Tensor,
    host: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    *,
    max_pages: int | None = None,
) -> torch.Tensor:
    """Return the attention of `q` [R, K, G, D] over every page as [R, K * G * D].

    Row r reads cells 0 .. `positions`[r] ([R], int, on the device), page p from slot `table`[p]
    ([P], int32) of `pool` [S * 2K, C, D], or in place from `host` [P * 2K, C, D] where the slot is
    negative. Positions and slots are read when the kernel runs; `max_pages` (default P) bounds
    the pages that positions may reach and sizes the grid, and leaves no trace in the result.
    Cells behind a row's position leave none either, whatever they hold.
    """
    limit = len(table) if max_pages is None else max_pages
    if not _by_kernel(q):
        return ref.attend_dense(q, pool, host, table, positions)
    from strata.kernels.paged_attention import triton

    return triton.attend_dense(q, pool, host, table, positions, max_pages=limit)


def attend_selected(
    q: torch.Tensor,
    pool: torch.Tensor,
    host: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    pages: torch.Tensor,
) -> torch.Tensor:
    """Return what `attend_dense` does, row r over its own pages `pages`[r] ([R, M], ascending).

    Pages wholly behind a row's position count as not listed, even past P, so a row whose depth is
    less than M pages lists 0 .. M - 1.
    """
    if not _by_kernel(q):
        return ref.attend_selected(q, pool, host, table, positions, pages)
    from strata.kernels.paged_attention import triton

    return triton.attend_selected(q, pool, host, table, positions, pages)


def split_cells(dim: int) -> int:
    """Return the cells of a split for heads of `dim` values, before they are cut to whole pages."""
    return SPLIT_CELLS if dim <= 64 else SPLIT_CELLS // 2


def split_shape(rows: int, heads: int, dim: int, pages: int, page_cells: int) -> tuple[int, ...]:
    """Return the shape of `Splits.sums` for rows that read at most `pages` pages each."""
    split_pages = max(1, split_cells(dim) // page_cells)
    return (rows * heads, -(-pages // split_pages), dim)


def split_attention(
    q: torch.Tensor,
    pool: torch.Tensor,
    host: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    pages: torch.Tensor | None,
    out: tuple[torch.Tensor, torch.Tensor],
) -> Splits:
    """Return what `attend_dense` reduces, or `attend_selected` where there are `pages`.

    `out` are buffers for sums and stats, as large as `split_shape` says. The reference has one
    split, of everything.
    """
    if _by_kernel(q):
        from strata.kernels.paged_attention import triton

        return triton.split_attention(q, pool, host, table, positions, pages, out)
    if pages is None:
        attended = ref.attend_dense(q, pool, host, table, positions)
    else:
        attended = ref.attend_selected(q, pool, host, table, positions, pages)
    return Splits.of(attended, q.shape[-1])


def _by_kernel(q: torch.Tensor) -> bool:
    rows, _, group, head_dim = q.shape
    fits = rows <= MAX_ROWS and supports(head_dim=head_dim, dtype=q.dtype, group=group)
    return fits and device.has_kernels(q)
