"""Row-wise work of a prompt in Triton: every launch writes into buffers that are given.

A row's bits depend on nothing but the row: products run over fixed blocks in one order.
"""

import math

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of
from strata.kernels.interpreted import INTERPRETED

BLOCK_ROWS = 64
BLOCK_INNER = 64
BLOCK_COLUMNS = 64
NORM_ROWS = 8
TURN_ROWS = 32
TURN = tl.constexpr(2 * math.pi)


@triton.jit
def _inverse_rms(x_ptr, row, given, size, eps, BLOCK_M: tl.constexpr, BLOCK_H: tl.constexpr):
    """Return 1 / root mean square of each row [M] of `x`, in float32."""
    squares = tl.zeros([BLOCK_M, BLOCK_H], tl.float32)
    for start in range(0, size, BLOCK_H):
        h = start + tl.arange(0, BLOCK_H)
        mask = given[:, None] & (h < size)[None, :]
        x = tl.load(x_ptr + row[:, None] * size + h[None, :], mask=mask, other=0.0)
        x = x.to(tl.float32)
        squares += x * x
    return tl.rsqrt(tl.sum(squares, 1) / size + eps)


@triton.jit
def _normed(x_ptr, norm_ptr, inverse, row, given, h, size):
    """Return a block of normed rows, rounded to their type."""
    mask = given[:, None] & (h < size)[None, :]
    x = tl.load(x_ptr + row[:, None] * size + h[None, :], mask=mask, other=0.0)
    gain = tl.load(norm_ptr + h, mask=h < size, other=0.0)
    return (x.to(tl.float32) * inverse[:, None] * gain.to(tl.float32)[None, :]).to(x.dtype)


@triton.jit(do_not_specialize=["rows"])
def _norm(
    x_ptr,
    index_ptr,
    norm_ptr,
    out_ptr,
    rows,
    out_stride,
    eps,
    SIZE: tl.constexpr,
    INDEXED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Write normed rows; with INDEXED row r of x is the one that the index names."""
    r = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    given = r < rows
    row = r.to(tl.int64)
    if INDEXED:
        row = tl.load(index_ptr + r, mask=given, other=0).to(tl.int64)
    inverse = _inverse_rms(x_ptr, row, given, SIZE, eps, BLOCK_M, BLOCK_H)
    for start in range(0, SIZE, BLOCK_H):
        h = start + tl.arange(0, BLOCK_H)
        mask = given[:, None] & (h < SIZE)[None, :]
        out = _normed(x_ptr, norm_ptr, inverse, row, given, h, SIZE)
        tl.store(out_ptr + r.to(tl.int64)[:, None] * out_stride + h[None, :], out, mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _product(
    a_ptr,
    w_ptr,
    x_ptr,
    rows,
    INNER: tl.constexpr,
    COLUMNS: tl.constexpr,
    ADD: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Write a @ w.T to a tile of x, or add it there."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    given, wanted = row < rows, n < COLUMNS
    row = row.to(tl.int64)
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, INNER, BLOCK_H):
        h = start + tl.arange(0, BLOCK_H)
        inside = (h < INNER)[None, :]
        mask = given[:, None] & inside
        a = tl.load(a_ptr + row[:, None] * INNER + h[None, :], mask=mask, other=0.0)
        mask = wanted[:, None] & inside
        w = tl.load(w_ptr + n.to(tl.int64)[:, None] * INNER + h[None, :], mask=mask, other=0.0)
        if WIDEN:
            a, w = a.to(tl.float32), w.to(tl.float32)
        sums = tl.dot(a, tl.trans(w), sums, input_precision="ieee")
    at = x_ptr + row[:, None] * COLUMNS + n[None, :]
    mask = given[:, None] & wanted[None, :]
    if ADD:
        sums += tl.load(at, mask=mask, other=0.0).to(tl.float32)
    tl.store(at, sums.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows", "first_position"])
def _turns(
    rates_ptr,
    out_ptr,
    rows,
    first_position,
    HALF: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """Write cosine and sine of rows' positions.

    The phase is float32, as a reference's; whole turns leave it in float64, because a sine of
    100,000 radians in float32 has no correct digit in its last bits.
    """
    r = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_HALF)
    rate = tl.load(rates_ptr + d, mask=d < HALF, other=0.0)
    phase = ((first_position + r).to(tl.float32)[:, None] * rate[None, :]).to(tl.float64)
    phase = (phase - tl.floor(phase / TURN + 0.5) * TURN).to(tl.float32)
    mask = (r < rows)[:, None] & (d < HALF)[None, :]
    at = out_ptr + r[:, None] * (2 * HALF) + d[None, :]
    kind = out_ptr.dtype.element_ty
    tl.store(at, tl.cos(phase).to(kind), mask=mask)
    tl.store(at + HALF, tl.sin(phase).to(kind), mask=mask)


@triton.jit(do_not_specialize=["rows", "first_head", "offset"])
def _heads(
    x_ptr,
    norm_ptr,
    w_ptr,
    head_norm_ptr,
    turns_ptr,
    q_ptr,
    kv_ptr,
    rows,
    first_head,
    offset,
    eps,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HIDDEN: tl.constexpr,
    DIM: tl.constexpr,
    PAGE_CELLS: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """Write one head of a tile of rows: its query, or its key or value into pages.

    A row's norm is one factor of its products, so it is multiplied in at their end and x is read
    once.
    """
    HALF: tl.constexpr = DIM // 2
    kind = q_ptr.dtype.element_ty
    head = first_head + tl.program_id(1)
    r = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    given = r < rows
    row = r.to(tl.int64)
    d = tl.arange(0, BLOCK_HALF)
    wanted = d < HALF
    squares = tl.zeros([BLOCK_M, BLOCK_H], tl.float32)
    low = tl.zeros([BLOCK_M, BLOCK_HALF], tl.float32)
    high = tl.zeros([BLOCK_M, BLOCK_HALF], tl.float32)
    for start in range(0, HIDDEN, BLOCK_H):
        h = start + tl.arange(0, BLOCK_H)
        inside = h < HIDDEN
        mask = given[:, None] & inside[None, :]
        x = tl.load(x_ptr + row[:, None] * HIDDEN + h[None, :], mask=mask, other=0.0)
        gain = tl.load(norm_ptr + h, mask=inside, other=0.0).to(tl.float32)
        wide = x.to(tl.float32)
        squares += wide * wide
        x = (wide * gain[None, :]).to(kind)
        mask = wanted[:, None] & inside[None, :]
        at = w_ptr + (head * DIM + d)[:, None] * HIDDEN + h[None, :]
        w_low = tl.load(at, mask=mask, other=0.0)
        w_high = tl.load(at + HALF * HIDDEN, mask=mask, other=0.0)
        if WIDEN:
            x, w_low, w_high = x.to(tl.float32), w_low.to(tl.float32), w_high.to(tl.float32)
        low = tl.dot(x, tl.trans(w_low), low, input_precision="ieee")
        high = tl.dot(x, tl.trans(w_high), high, input_precision="ieee")
    inverse = tl.rsqrt(tl.sum(squares, 1) / HIDDEN + eps)[:, None]
    low = (low * inverse).to(kind).to(tl.float32)
    high = (high * inverse).to(kind).to(tl.float32)
    mask = given[:, None] & wanted[None, :]
    if head < QUERY_HEADS + KV_HEADS:
        scale = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / DIM + eps)[:, None]
        gains = head_norm_ptr + head * DIM + d
        gain_low = tl.load(gains, mask=wanted, other=0.0).to(tl.float32)[None, :]
        gain_high = tl.load(gains + HALF, mask=wanted, other=0.0).to(tl.float32)[None, :]
        low = ((low * scale).to(kind).to(tl.float32) * gain_low).to(kind).to(tl.float32)
        high = ((high * scale).to(kind).to(tl.float32) * gain_high).to(kind).to(tl.float32)
        turns = turns_ptr + r[:, None] * DIM + d[None, :]
        cosine = tl.load(turns, mask=mask, other=0.0).to(tl.float32)
        sine = tl.load(turns + HALF, mask=mask, other=0.0).to(tl.float32)
        low, high = low * cosine - high * sine, high * cosine + low * sine
    low, high = low.to(kind), high.to(kind)
    if head < QUERY_HEADS:
        to = q_ptr + (row * QUERY_HEADS + head)[:, None] * DIM + d[None, :]
        tl.store(to, low, mask=mask)
        tl.store(to + HALF, high, mask=mask)
    else:
        cell = offset + r
        plane = (cell // PAGE_CELLS).to(tl.int64) * (2 * KV_HEADS) + head - QUERY_HEADS
        to = kv_ptr + (plane * PAGE_CELLS + cell % PAGE_CELLS)[:, None] * DIM + d[None, :]
        tl.store(to, low, mask=mask)
        tl.store(to + HALF, high, mask=mask)


def norm_rows(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    out: torch.Tensor,
    index: torch.Tensor | None = None,
) -> torch.Tensor:
    """Write normed rows of `x` [*, H] to `out` [n, H], whose rows may lie apart."""
    assert x.is_contiguous()
    assert out.stride(1) == 1
    size, rows = x.shape[1], len(out)
    with on_device_of(x):
        _norm[(triton.cdiv(rows, NORM_ROWS),)](
            x,
            x if index is None else index,
            weight,
            out,
            rows,
            out.stride(0),
            eps,
            SIZE=size,
            INDEXED=index is not None,
            BLOCK_M=NORM_ROWS,
            BLOCK_H=min(triton.next_power_of_2(size), 1024),
            num_warps=4,
        )
    return out


def write_product(
    a: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, add: bool
) -> torch.Tensor:
    """Write `a` [n, I] @ `weight` [N, I].T to `out` [n, N], or add it there."""
    assert a.is_contiguous()
    assert weight.is_contiguous()
    assert out.is_contiguous()
    (rows, inner), columns = a.shape, len(weight)
    grid = (triton.cdiv(rows, BLOCK_ROWS), triton.cdiv(columns, BLOCK_COLUMNS))
    with on_device_of(a):
        _product[grid](
            a,
            weight,
            out,
            rows,
            INNER=inner,
            COLUMNS=columns,
            ADD=add,
            WIDEN=INTERPRETED and a.dtype != torch.float32,
            BLOCK_M=BLOCK_ROWS,
            BLOCK_N=BLOCK_COLUMNS,
            BLOCK_H=BLOCK_INNER,
            num_warps=4,
            num_stages=3,
        )
    return out


def write_turns(rates: torch.Tensor, first_position: int, out: torch.Tensor) -> None:
    """Write the turns of consecutive positions; see the package for the contract."""
    assert out.is_contiguous()
    rows, _, half = out.shape
    with on_device_of(out):
        _turns[(triton.cdiv(rows, TURN_ROWS),)](
            rates,
            out,
            rows,
            first_position,
            HALF=half,
            BLOCK_M=TURN_ROWS,
            BLOCK_HALF=triton.next_power_of_2(half),
            num_warps=4,
        )


def project_heads(
    x: torch.Tensor,
    norm: torch.Tensor,
    weight: torch.Tensor,
    head_norm: torch.Tensor,
    turns: torch.Tensor,
    eps: float,
    *,
    q: torch.Tensor,
    pages: torch.Tensor,
    heads: range,
    offset: int,
) -> None:
    """Write the wanted heads of rows `x`; see the package for the contract."""
    assert x.is_contiguous()
    assert weight.is_contiguous()
    assert turns.is_contiguous()
    assert q.is_contiguous()
    assert pages.is_contiguous()
    (rows, hidden), (_, planes, page_cells, dim) = x.shape, pages.shape
    query_heads = weight.shape[0] // dim - planes
    with on_device_of(x):
        _heads[(triton.cdiv(rows, BLOCK_ROWS), len(heads))](
            x,
            norm,
            weight,
            head_norm,
            turns,
            q,
            pages,
            rows,
            heads.start,
            offset,
            eps,
            QUERY_HEADS=query_heads,
            KV_HEADS=planes // 2,
            HIDDEN=hidden,
            DIM=dim,
            PAGE_CELLS=page_cells,
            WIDEN=INTERPRETED and x.dtype != torch.float32,
            BLOCK_M=BLOCK_ROWS,
            BLOCK_H=BLOCK_INNER,
            BLOCK_HALF=max(16, triton.next_power_of_2(dim // 2)),
            num_warps=4,
            num_stages=3,
        )
