"""Append in Triton: one read of the new cells, two scattered writes."""

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of

BLOCK_ROWS = 16


@triton.jit(do_not_specialize=["count"])
def _append(
    cells_ptr,
    host_ptr,
    host_rows_ptr,
    pool_ptr,
    pool_rows_ptr,
    count,
    POOLED: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    given = row < count
    d = tl.arange(0, BLOCK_D)
    mask = given[:, None] & (d[None, :] < DIM)
    cells = tl.load(cells_ptr + row.to(tl.int64)[:, None] * DIM + d[None, :], mask=mask)
    to = tl.load(host_rows_ptr + row, mask=given, other=0).to(tl.int64)
    tl.store(host_ptr + to[:, None] * DIM + d[None, :], cells, mask=mask)
    if POOLED:
        to = tl.load(pool_rows_ptr + row, mask=given, other=-1).to(tl.int64)
        kept = mask & (to[:, None] >= 0)
        tl.store(pool_ptr + to[:, None] * DIM + d[None, :], cells, mask=kept)


def append_cells(
    cells: torch.Tensor,
    host: torch.Tensor,
    host_rows: torch.Tensor,
    pool: torch.Tensor | None = None,
    pool_rows: torch.Tensor | None = None,
) -> None:
    """Write both in one launch."""
    cells = cells.contiguous()
    dim = cells.shape[-1]
    count = cells.numel() // dim
    if count == 0:
        return
    with on_device_of(cells):
        _append[(triton.cdiv(count, BLOCK_ROWS),)](
            cells,
            host,
            host_rows,
            cells if pool is None else pool,
            host_rows if pool_rows is None else pool_rows,
            count,
            POOLED=pool is not None,
            DIM=dim,
            BLOCK_R=BLOCK_ROWS,
            BLOCK_D=triton.next_power_of_2(dim),
            num_warps=4,
        )
