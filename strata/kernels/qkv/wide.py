"""Queries and new cells of large shapes: a head's product is shared by programs, each row by all.

Shapes: R rows, H hidden, Q query heads, K K/V heads, D head dimension, N splits of H. A head's two
halves are computed apart, because the rotation pairs value d with value d + D / 2. The rows of a
tile are always `TILE_ROWS`, present or not, and splits are added in their order, so a row's bits do
not depend on the others.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of
from strata.kernels.interpreted import INTERPRETED
from strata.kernels.overlap import let_next_begin, overlapped, wait_for_previous
from strata.kernels.qkv import CellStore
from strata.kernels.qkv.triton import turn
from strata.kernels.settle import arrive_last
from strata.kernels.wide import SPLIT, TILE_ROWS, split_count

AT_ONCE = tl.constexpr(8)
"""Splits whose loads are all under way at once."""


@triton.jit(
    do_not_specialize=["capacity", "rows"],
    do_not_specialize_on_alignment=["positions_ptr", "table_ptr"],
)
def _project_tile(
    x_ptr,
    weight_ptr,
    gain_ptr,
    inverse_ptr,
    positions_ptr,
    table_ptr,
    q_ptr,
    cells_ptr,
    host_ptr,
    pool_ptr,
    parts_ptr,
    counter_ptr,
    capacity,
    rows,
    eps,
    Q: tl.constexpr,
    K: tl.constexpr,
    DIM: tl.constexpr,
    PAGE_CELLS: tl.constexpr,
    TABLE: tl.constexpr,
    HOST: tl.constexpr,
    HIDDEN: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_HIDDEN: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    ROWS: tl.constexpr,
    WIDEN: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    head = tl.program_id(0)
    split = tl.program_id(1)
    half: tl.constexpr = DIM // 2
    i = tl.arange(0, BLOCK_HALF)
    m = tl.arange(0, ROWS)
    given = i < half
    let_next_begin(OVERLAP)
    h = split * BLOCK_HIDDEN + tl.arange(0, BLOCK_HIDDEN)
    mask = given[:, None] & (h < HIDDEN)[None, :]
    w_at = weight_ptr + (head * DIM + i)[:, None] * HIDDEN + h[None, :]
    w_low = tl.load(w_at, mask=mask, other=0.0)  # under way while the rows are still being written
    w_high = tl.load(w_at + half * HIDDEN, mask=mask, other=0.0)
    wait_for_previous(OVERLAP)
    inside = (m < rows)[:, None] & (h < HIDDEN)[None, :]
    x = tl.load(x_ptr + m[:, None] * HIDDEN + h[None, :], mask=inside, other=0.0)
    if WIDEN:
        x, w_low, w_high = x.to(tl.float32), w_low.to(tl.float32), w_high.to(tl.float32)
    low = tl.dot(x, tl.trans(w_low), input_precision="ieee")
    high = tl.dot(x, tl.trans(w_high), input_precision="ieee")
    kept = (m < rows)[:, None] & given[None, :]
    part = parts_ptr + ((head * SPLITS + split) * rows + m)[:, None] * DIM + i[None, :]
    tl.store(part, low, mask=kept)
    tl.store(part + half, high, mask=kept)
    if not arrive_last(counter_ptr + head, SPLITS):
        return
    low = tl.zeros((ROWS, BLOCK_HALF), tl.float32)
    high = tl.zeros((ROWS, BLOCK_HALF), tl.float32)
    for start in range(0, SPLITS, AT_ONCE):
        for s in tl.static_range(AT_ONCE):
            part = parts_ptr + ((head * SPLITS + start + s) * rows + m)[:, None] * DIM + i[None, :]
            there = kept & (start + s < SPLITS)
            low += tl.load(part, mask=there, other=0.0, cache_modifier=".cg")
            high += tl.load(part + half, mask=there, other=0.0, cache_modifier=".cg")
    position = tl.load(positions_ptr + m, mask=m < rows, other=0)
    if head < Q + K:
        scale = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / DIM + eps)
        gain = gain_ptr + head * DIM + i
        gain_low = tl.load(gain, mask=given, other=0.0).to(tl.float32)
        gain_high = tl.load(gain + half, mask=given, other=0.0).to(tl.float32)
        low = low * scale[:, None] * gain_low[None, :]
        high = high * scale[:, None] * gain_high[None, :]
        rate = tl.load(inverse_ptr + i, mask=given, other=0.0)
        low, high = turn(low, high, position.to(tl.float32)[:, None] * rate[None, :])
    kind = q_ptr.dtype.element_ty
    low = low.to(kind)
    high = high.to(kind)
    if head < Q:
        at = q_ptr + (m * Q + head)[:, None] * DIM + i[None, :]
        tl.store(at, low, mask=kept)
        tl.store(at + half, high, mask=kept)
    else:
        plane = head - Q
        at = cells_ptr + (m * (2 * K) + plane)[:, None] * DIM + i[None, :]
        tl.store(at, low, mask=kept)
        tl.store(at + half, high, mask=kept)
        page = position // PAGE_CELLS
        offset = position % PAGE_CELLS
        if HOST:
            cell = (page * (2 * K) + plane) * PAGE_CELLS + offset
            at = host_ptr + cell[:, None] * DIM + i[None, :]
            tl.store(at, low, mask=kept)
            tl.store(at + half, high, mask=kept)
        if TABLE:
            slot = tl.load(table_ptr + page, mask=m < rows, other=-1).to(tl.int64)
            kept = kept & (slot >= 0)[:, None]
        else:
            slot = page % capacity
        cell = (slot * (2 * K) + plane) * PAGE_CELLS + offset
        at = pool_ptr + cell[:, None] * DIM + i[None, :]
        tl.store(at, low, mask=kept)
        tl.store(at + half, high, mask=kept)


def project_cells(
    normed: torch.Tensor,
    weight: torch.Tensor,
    qk_norm: torch.Tensor,
    inverse: torch.Tensor,
    positions: torch.Tensor,
    store: CellStore,
    *,
    eps: float,
    q: torch.Tensor,
    cells: torch.Tensor,
    parts: torch.Tensor,
    counter: torch.Tensor,
) -> None:
    """Launch over heads x splits; see the package for the contract."""
    (rows, hidden), (heads, dim), kv_heads = normed.shape, q.shape[1:], cells.shape[2]
    splits = split_count(hidden)
    block_half = max(16, triton.next_power_of_2(dim // 2))
    with on_device_of(normed):
        _project_tile[(heads + 2 * kv_heads, splits)](
            normed,
            weight,
            qk_norm,
            inverse,
            positions,
            positions if store.table is None else store.table,
            q,
            cells,
            store.pool if store.host is None else store.host,
            store.pool,
            parts,
            counter,
            store.capacity(kv_heads),
            rows,
            eps,
            Q=heads,
            K=kv_heads,
            DIM=dim,
            PAGE_CELLS=store.page_cells,
            TABLE=store.table is not None,
            HOST=store.host is not None,
            HIDDEN=hidden,
            SPLITS=splits,
            BLOCK_HIDDEN=SPLIT,
            BLOCK_HALF=block_half,
            ROWS=TILE_ROWS,
            WIDEN=INTERPRETED,
            num_warps=4 if block_half <= 64 else 8,  # a tile stays in registers
            **overlapped(normed),
        )
