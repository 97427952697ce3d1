"""One program a row and head: its product, norm and rotation, and the store of the result.

Shapes: R rows, H hidden, Q query heads, K K/V heads, D head dimension. A head's two halves are
computed apart, because the rotation pairs value d with value d + D / 2.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of
from strata.kernels.overlap import let_next_begin, overlapped, wait_for_previous
from strata.kernels.qkv import CellStore
from strata.kernels.settle import load_row

TURN = tl.constexpr(2 * math.pi)
PER_TURN = tl.constexpr(1 / (2 * math.pi))


@triton.jit
def turn(low, high, phase):
    """Return the two halves of heads turned by `phase`, which is float32, as the reference's.

    Whole turns leave it in float64, because the device's sine of 100,000 radians has few right
    digits.
    """
    wide = phase.to(tl.float64)
    angle = (wide - tl.floor(wide * PER_TURN + 0.5) * TURN).to(tl.float32)
    cos = tl.cos(angle)
    sin = tl.sin(angle)
    return low * cos - high * sin, high * cos + low * sin


@triton.jit(
    do_not_specialize=["capacity"],
    do_not_specialize_on_alignment=["positions_ptr", "table_ptr"],
)
def _project(
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
    capacity,
    eps,
    Q: tl.constexpr,
    K: tl.constexpr,
    DIM: tl.constexpr,
    PAGE_CELLS: tl.constexpr,
    TABLE: tl.constexpr,
    HOST: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_HIDDEN: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    half: tl.constexpr = DIM // 2
    i = tl.arange(0, BLOCK_HALF)
    given = i < half
    let_next_begin(OVERLAP)
    first = weight_ptr + (head * DIM + i)[:, None] * HIDDEN
    if BLOCK_HIDDEN >= HIDDEN:  # weights are under way while the row is still being written
        h = tl.arange(0, BLOCK_HIDDEN)
        mask = given[:, None] & (h < HIDDEN)[None, :]
        w_low = tl.load(first + h[None, :], mask=mask, other=0.0)
        w_high = tl.load(first + half * HIDDEN + h[None, :], mask=mask, other=0.0)
        wait_for_previous(OVERLAP)
        x = load_row(x_ptr + row * HIDDEN, h, HIDDEN)[None, :]
        low = tl.sum(w_low.to(tl.float32) * x, 1)
        high = tl.sum(w_high.to(tl.float32) * x, 1)
    else:
        wait_for_previous(OVERLAP)
        low = tl.zeros((BLOCK_HALF,), tl.float32)
        high = tl.zeros((BLOCK_HALF,), tl.float32)
        for start in range(0, HIDDEN, BLOCK_HIDDEN):
            h = start + tl.arange(0, BLOCK_HIDDEN)
            mask = given[:, None] & (h < HIDDEN)[None, :]
            w_low = tl.load(first + h[None, :], mask=mask, other=0.0)
            w_high = tl.load(first + half * HIDDEN + h[None, :], mask=mask, other=0.0)
            x = load_row(x_ptr + row * HIDDEN, h, HIDDEN)[None, :]
            low += tl.sum(w_low.to(tl.float32) * x, 1)
            high += tl.sum(w_high.to(tl.float32) * x, 1)
    kind = q_ptr.dtype.element_ty
    position = tl.load(positions_ptr + row)
    if head < Q + K:
        scale = tl.rsqrt((tl.sum(low * low, 0) + tl.sum(high * high, 0)) / DIM + eps)
        gain = gain_ptr + head * DIM + i
        low = low * scale * tl.load(gain, mask=given, other=0.0).to(tl.float32)
        high = high * scale * tl.load(gain + half, mask=given, other=0.0).to(tl.float32)
        rate = tl.load(inverse_ptr + i, mask=given, other=0.0)
        low, high = turn(low, high, position.to(tl.float32) * rate)
    low = low.to(kind)
    high = high.to(kind)
    if head < Q:
        at = q_ptr + (row * Q + head) * DIM + i
        tl.store(at, low, mask=given)
        tl.store(at + half, high, mask=given)
    else:
        plane = head - Q
        at = cells_ptr + (row * (2 * K) + plane) * DIM + i
        tl.store(at, low, mask=given)
        tl.store(at + half, high, mask=given)
        page = position // PAGE_CELLS
        offset = position % PAGE_CELLS
        if HOST:
            at = host_ptr + ((page * (2 * K) + plane) * PAGE_CELLS + offset) * DIM + i
            tl.store(at, low, mask=given)
            tl.store(at + half, high, mask=given)
        if TABLE:
            slot = tl.load(table_ptr + page).to(tl.int64)
            kept = i < tl.where(slot >= 0, half, 0)
        else:
            slot = page % capacity
            kept = given
        at = pool_ptr + ((slot * (2 * K) + plane) * PAGE_CELLS + offset) * DIM + i
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
) -> None:
    """Launch over heads x rows; see the package for the contract."""
    (rows, hidden), (heads, dim), kv_heads = normed.shape, q.shape[1:], cells.shape[2]
    block_half = max(16, triton.next_power_of_2(dim // 2))
    with on_device_of(normed):
        _project[(heads + 2 * kv_heads, rows)](
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
            store.capacity(kv_heads),
            eps,
            Q=heads,
            K=kv_heads,
            DIM=dim,
            PAGE_CELLS=store.page_cells,
            TABLE=store.table is not None,
            HOST=store.host is not None,
            HIDDEN=hidden,
            BLOCK_HIDDEN=min(triton.next_power_of_2(hidden), 8192 // block_half),
            BLOCK_HALF=block_half,
            num_warps=8,
            **overlapped(normed),
        )
