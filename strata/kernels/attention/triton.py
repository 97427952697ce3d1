"""Prompt attention in Triton: one pass over K/V in page order, its state carried between calls.

A program owns a tile of rows of one K/V head: the head's queries at some positions. It walks
cells in blocks that start at multiples of BLOCK_N of the sequence, whatever piece of the sequence a
call brings, and between calls its accumulator rests in memory in float32. So a row has the same
bits however the past was cut.
"""

import math

import torch
import triton
import triton.language as tl

from strata.kernels.attention import BLOCK_CELLS
from strata.kernels.device import on_device_of
from strata.kernels.interpreted import INTERPRETED

BLOCK_M = 128
STAGES = 3
WIDE_DIM = 128
"""Values of a head above which cells ahead of their use do not fit in shared memory."""


@triton.jit
def _flash_blocks(
    acc,
    top,
    total,
    q,
    k_ptr,
    v_ptr,
    position,
    start,
    end,
    limit,
    first_cell,
    page_stride,
    scale,
    MASKED: tl.constexpr,
    DIM: tl.constexpr,
    PAGE_CELLS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WIDEN: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Fold the cells from `start` to `end`, whole blocks, into a tile's state."""
    d = tl.arange(0, BLOCK_D)
    n = tl.arange(0, BLOCK_N)
    for block in tl.range(start, end, BLOCK_N, num_stages=STAGES):
        cell = block + n
        first = block - first_cell
        base = (first // PAGE_CELLS).to(tl.int64) * page_stride
        # Where blocks begin with a page, what follows is the same for all of them.
        rest = n if BLOCK_N % PAGE_CELLS == 0 else first % PAGE_CELLS + n
        at = (rest // PAGE_CELLS) * page_stride + (rest % PAGE_CELLS) * DIM
        at = at[:, None] + d[None, :]
        if MASKED or BLOCK_D != DIM:
            mask = (cell < limit)[:, None] & (d < DIM)[None, :]
            k = tl.load(k_ptr + base + at, mask=mask, other=0.0)
            v = tl.load(v_ptr + base + at, mask=mask, other=0.0)
        else:
            k = tl.load(k_ptr + base + at)
            v = tl.load(v_ptr + base + at)
        if WIDEN:
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if MASKED:
            scores = tl.where(cell[None, :] <= position[:, None], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1) * scale)
        share = tl.exp2(scores * scale - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(share, 1)
        acc = acc * shrink[:, None]
        acc = tl.dot(share.to(v.dtype), v, acc, input_precision="ieee")
        top = higher
    return acc, top, total


@triton.jit(do_not_specialize=["rows", "first_row", "first_cell", "start", "end"])
def _flash(
    q_ptr,
    kv_ptr,
    sums_ptr,
    stats_ptr,
    out_ptr,
    rows,
    first_row,
    first_cell,
    start,
    end,
    scale,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PAGE_CELLS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WIDEN: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Attend a tile of BLOCK_M // GROUP rows to the cells `start` .. `end` - 1 of its past."""
    POSITIONS: tl.constexpr = BLOCK_M // GROUP
    page_stride = 2 * KV_HEADS * PAGE_CELLS * DIM
    # Later rows read more, so they go first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1)
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    row = tile * POSITIONS + m // GROUP
    given = (m < POSITIONS * GROUP) & (row < rows)
    position = tl.minimum(row, rows - 1) + first_row
    query = (tl.minimum(row, rows - 1).to(tl.int64) * KV_HEADS + head) * GROUP + m % GROUP
    mask = given[:, None] & (d < DIM)[None, :]
    q = tl.load(q_ptr + query[:, None] * DIM + d[None, :], mask=mask, other=0.0)
    if WIDEN:
        q = q.to(tl.float32)
    if FIRST:
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        top = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
    else:
        acc = tl.load(sums_ptr + query[:, None] * DIM + d[None, :], mask=mask, other=0.0)
        top = tl.load(stats_ptr + query * 2, mask=given, other=0.0)
        total = tl.load(stats_ptr + query * 2 + 1, mask=given, other=1.0)

    lowest = tile * POSITIONS + first_row
    highest = tl.minimum((tile + 1) * POSITIONS, rows) - 1 + first_row
    end = tl.minimum(end, highest + 1)
    whole = tl.maximum(start, tl.minimum(end, lowest + 1) // BLOCK_N * BLOCK_N)
    k_ptr = kv_ptr + head * (PAGE_CELLS * DIM)
    v_ptr = kv_ptr + (KV_HEADS + head) * (PAGE_CELLS * DIM)
    acc, top, total = _flash_blocks(
        acc, top, total, q, k_ptr, v_ptr, position, start, whole, end, first_cell, page_stride,
        scale, False, DIM, PAGE_CELLS, BLOCK_N, BLOCK_D, WIDEN, STAGES,
    )  # fmt: skip
    acc, top, total = _flash_blocks(
        acc, top, total, q, k_ptr, v_ptr, position, whole, end, end, first_cell, page_stride,
        scale, True, DIM, PAGE_CELLS, BLOCK_N, BLOCK_D, WIDEN, 1,
    )  # fmt: skip
    if LAST:
        acc = acc / total[:, None]
        out = acc.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + query[:, None] * DIM + d[None, :], out, mask=mask)
    else:
        tl.store(sums_ptr + query[:, None] * DIM + d[None, :], acc, mask=mask)
        tl.store(stats_ptr + query * 2, top, mask=given)
        tl.store(stats_ptr + query * 2 + 1, total, mask=given)


def attend_prompt(
    q: torch.Tensor,
    pages: torch.Tensor,
    *,
    first_position: int,
    first_cell: int,
    cells: range,
    sums: torch.Tensor,
    stats: torch.Tensor,
    last: bool,
    out: torch.Tensor,
) -> None:
    """Read one range of cells; see the package for the contract."""
    rows, heads, dim = q.shape
    _, planes, page_cells, _ = pages.shape
    kv_heads, group = planes // 2, heads // (planes // 2)
    assert cells.start % BLOCK_CELLS == 0
    assert last or cells.stop % BLOCK_CELLS == 0
    assert q.is_contiguous()
    assert pages.is_contiguous()
    assert out.is_contiguous()
    grid = (triton.cdiv(rows, BLOCK_M // group), kv_heads)
    block_d = max(16, triton.next_power_of_2(dim))
    with on_device_of(q):
        _flash[grid](
            q,
            pages,
            sums,
            stats,
            out,
            rows,
            first_position,
            first_cell,
            cells.start,
            cells.stop,
            math.log2(math.e) / math.sqrt(dim),
            FIRST=cells.start == 0,
            LAST=last,
            KV_HEADS=kv_heads,
            GROUP=group,
            DIM=dim,
            PAGE_CELLS=page_cells,
            BLOCK_M=BLOCK_M,
            BLOCK_N=BLOCK_CELLS,
            BLOCK_D=block_d,
            WIDEN=INTERPRETED and q.dtype != torch.float32,
            STAGES=STAGES if block_d <= WIDE_DIM else 1,
            num_warps=8,
        )
