"""The gated expert product of large shapes: each distinct expert of a window is read once.

Shapes: R rows, H hidden, k experts a token, I expert width, N experts over all layers, S slots. A
first launch takes gate, up and SiLU by block of inner values, a second one takes down by block of
outputs. The rows of a tile are always `TILE_ROWS`, present or not, and sums run in a fixed order,
so a row's bits depend neither on how many rows there are nor on which experts they share.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of
from strata.kernels.experts import part_shape
from strata.kernels.interpreted import INTERPRETED
from strata.kernels.overlap import let_next_begin, overlapped, wait_for_previous
from strata.kernels.settle import load_row, norm_row
from strata.kernels.wide import BLOCK_OUT, TILE_ROWS, block_count

BLOCK_WIDTH = 32
"""Inner values of an expert that one program of the first launch computes."""
BLOCK_HIDDEN = 256
BLOCK_SUMMED = 128
"""Inner values that the second launch multiplies at a time."""


@triton.jit
def _window_pairs(
    ids_ptr, pair, rows, COUNT: tl.constexpr, BLOCK_COUNT: tl.constexpr, ROWS: tl.constexpr
):
    """Return the expert of `pair`, whether an earlier pair names it, and each row's pair of it.

    Pairs are numbered row by row; -1 is a row without. A negative expert is padding, which stands
    for itself alone.
    """
    m = tl.arange(0, ROWS)
    j = tl.arange(0, BLOCK_COUNT)
    at = m[:, None] * COUNT + j[None, :]
    given = (m < rows)[:, None] & (j < COUNT)[None, :]
    listed = tl.load(ids_ptr + at, mask=given, other=-1).to(tl.int32)
    expert = tl.load(ids_ptr + pair).to(tl.int32)
    same = given & tl.where(expert < 0, at == pair, listed == expert)
    found = tl.where(same, at, -1)
    earlier = tl.max(tl.max(tl.where(same & (at < pair), 1, 0), 1), 0)
    return expert, earlier, tl.max(found, 1)


@triton.jit
def _blob_of(expert, pool_ptr, host_ptr, table_ptr, SIZE: tl.constexpr, POOLED: tl.constexpr):
    """Return where an expert begins, in its slot or in place."""
    expert = expert.to(tl.int64)
    if POOLED:
        slot = tl.load(table_ptr + expert).to(tl.int64)
        blob = tl.where(slot >= 0, pool_ptr + slot * SIZE, host_ptr + expert * SIZE)
    else:
        blob = pool_ptr + expert * SIZE
    return blob


@triton.jit(do_not_specialize=["base", "rows"])
def _window_gate_up(
    x_ptr,
    ids_ptr,
    pool_ptr,
    host_ptr,
    table_ptr,
    inner_ptr,
    base,
    rows,
    COUNT: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    POOLED: tl.constexpr,
    BLOCK_COUNT: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK_HIDDEN: tl.constexpr,
    ROWS: tl.constexpr,
    WIDEN: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Write silu(gate x) * (up x) of a block of inner values for every row that has the expert."""
    block = tl.program_id(0)
    pair = tl.program_id(1)
    wait_for_previous(OVERLAP)
    let_next_begin(OVERLAP)  # only now: the next launch reads the choice before it waits
    expert, earlier, pairs = _window_pairs(ids_ptr, pair, rows, COUNT, BLOCK_COUNT, ROWS)
    if (expert < 0) | (earlier > 0):
        return
    blob = _blob_of(expert + base, pool_ptr, host_ptr, table_ptr, 3 * WIDTH * HIDDEN, POOLED)
    m = tl.arange(0, ROWS)
    i = block * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
    weights = blob + i[:, None] * HIDDEN
    gate = tl.zeros((ROWS, BLOCK_WIDTH), tl.float32)
    up = tl.zeros((ROWS, BLOCK_WIDTH), tl.float32)
    for start in range(0, HIDDEN, BLOCK_HIDDEN):
        h = start + tl.arange(0, BLOCK_HIDDEN)
        mask = (i < WIDTH)[:, None] & (h < HIDDEN)[None, :]
        w_gate = tl.load(weights + h[None, :], mask=mask, other=0.0)
        w_up = tl.load(weights + WIDTH * HIDDEN + h[None, :], mask=mask, other=0.0)
        given = (m < rows)[:, None] & (h < HIDDEN)[None, :]
        x = tl.load(x_ptr + m[:, None] * HIDDEN + h[None, :], mask=given, other=0.0)
        if WIDEN:
            x, w_gate, w_up = x.to(tl.float32), w_gate.to(tl.float32), w_up.to(tl.float32)
        gate = tl.dot(x, tl.trans(w_gate), gate, input_precision="ieee")
        up = tl.dot(x, tl.trans(w_up), up, input_precision="ieee")
    inner = gate * tl.sigmoid(gate) * up
    mask = (pairs >= 0)[:, None] & (i < WIDTH)[None, :]
    at = inner_ptr + pairs[:, None] * WIDTH + i[None, :]
    tl.store(at, inner.to(inner_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["base", "rows"])
def _window_down(
    ids_ptr,
    weights_ptr,
    pool_ptr,
    host_ptr,
    table_ptr,
    inner_ptr,
    parts_ptr,
    arrivals_ptr,
    counter_ptr,
    residual_ptr,
    gain_ptr,
    out_ptr,
    base,
    rows,
    eps,
    COUNT: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    POOLED: tl.constexpr,
    SETTLE: tl.constexpr,
    BLOCK_COUNT: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDEN: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Write what a block of outputs gets from an expert, for every row that has it.

    The last program of a block adds its parts in router order to the residual, the last block of a
    row norms the row.
    """
    block = tl.program_id(0)
    pair = tl.program_id(1)
    let_next_begin(OVERLAP)
    # The choice was made before the first launch began, which began before this one.
    expert, earlier, pairs = _window_pairs(ids_ptr, pair, rows, COUNT, BLOCK_COUNT, ROWS)
    if earlier > 0:
        return
    m = tl.arange(0, ROWS)
    o = block * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    used = pairs >= 0
    if expert >= 0:
        blob = _blob_of(expert + base, pool_ptr, host_ptr, table_ptr, 3 * WIDTH * HIDDEN, POOLED)
        blob += 2 * WIDTH * HIDDEN
        acc = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
        wait_for_previous(OVERLAP)
        for start in range(0, WIDTH, BLOCK_WIDTH):
            i = start + tl.arange(0, BLOCK_WIDTH)
            mask = (i < WIDTH)[:, None] & (o < HIDDEN)[None, :]
            w = tl.load(blob + i[:, None] * HIDDEN + o[None, :], mask=mask, other=0.0)
            given = used[:, None] & (i < WIDTH)[None, :]
            a = tl.load(inner_ptr + pairs[:, None] * WIDTH + i[None, :], mask=given, other=0.0)
            if WIDEN:
                a, w = a.to(tl.float32), w.to(tl.float32)
            acc = tl.dot(a, w, acc, input_precision="ieee")
        shares = tl.load(weights_ptr + pairs, mask=used, other=0.0).to(tl.float32)
        at = parts_ptr + pairs[:, None] * HIDDEN + o[None, :]
        tl.store(at, acc * shares[:, None], mask=used[:, None] & (o < HIDDEN)[None, :])
    else:
        wait_for_previous(OVERLAP)
    blocks = tl.num_programs(0)
    arrival = arrivals_ptr + m * blocks + block
    tl.debug_barrier()
    before = tl.atomic_add(arrival, 1, mask=used, sem="acq_rel", scope="gpu")
    tl.debug_barrier()
    last = used & (before == COUNT - 1)
    if tl.max(last.to(tl.int32), 0) == 0:
        return
    tl.store(arrival, 0, mask=last)
    inside = last[:, None] & (o < HIDDEN)[None, :]
    place = m[:, None] * HIDDEN + o[None, :]
    total = tl.zeros((ROWS, BLOCK_OUT), tl.float32)
    if SETTLE:
        total = tl.load(residual_ptr + place, mask=inside, other=0.0).to(tl.float32)
    for j in range(COUNT):
        mask = inside
        if not SETTLE:
            listed = tl.load(ids_ptr + m * COUNT + j, mask=last, other=-1)
            mask = inside & (listed >= 0)[:, None]
        part = parts_ptr + (m * COUNT + j)[:, None] * HIDDEN + o[None, :]
        total += tl.load(part, mask=mask, other=0.0, cache_modifier=".cg")
    if not SETTLE:
        tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        tl.store(residual_ptr + place, total.to(residual_ptr.dtype.element_ty), mask=inside)
        tl.debug_barrier()
        before = tl.atomic_add(counter_ptr + m, 1, mask=last, sem="acq_rel", scope="gpu")
        tl.debug_barrier()
        whole = last & (before == blocks - 1)
        tl.store(counter_ptr + m, 0, mask=whole)
        h = tl.arange(0, BLOCK)
        for row in range(rows):
            if tl.max(tl.where(whole & (m == row), 1, 0), 0) > 0:
                at = residual_ptr + row * HIDDEN + h
                x = tl.load(at, mask=h < HIDDEN, other=0.0, cache_modifier=".cg").to(tl.float32)
                normed = norm_row(x, load_row(gain_ptr, h, HIDDEN), eps, HIDDEN)
                at = out_ptr + row * HIDDEN + h
                tl.store(at, normed.to(out_ptr.dtype.element_ty), mask=h < HIDDEN)


def slot_product(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    pool: torch.Tensor,
    *,
    table: torch.Tensor | None = None,
    host: torch.Tensor | None = None,
    base: int = 0,
    out: torch.Tensor | None = None,
    parts: torch.Tensor | None = None,
    counter: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gain: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Launch both products; see the package for the contract. A row's experts are distinct.

    `parts` and `counter` are buffers for captured launches; `out` may be `x` itself. With
    `residual` and `gain` no id is padding.
    """
    (rows, count), (hidden, width) = ids.shape, (x.shape[1], pool.shape[1] // 3)
    assert rows <= TILE_ROWS, f"a window of {rows} rows is more than {TILE_ROWS}"
    blocks = block_count(hidden)
    if parts is None:
        shape = part_shape(rows, count, hidden, width)
        parts = torch.empty(shape, dtype=torch.float32, device=x.device)
    if counter is None:
        counter = torch.zeros(rows, 1 + blocks, dtype=torch.int32, device=x.device)
    out = torch.empty_like(x) if out is None else out
    x, ids, weights = x.contiguous(), ids.contiguous(), weights.contiguous()
    scratch, counts = parts.flatten(), counter.flatten()
    inner = scratch[rows * count * hidden :].view(x.dtype)
    where = pool, pool if host is None else host, ids if table is None else table
    common = {
        "COUNT": count,
        "HIDDEN": hidden,
        "WIDTH": width,
        "POOLED": table is not None,
        "BLOCK_COUNT": triton.next_power_of_2(count),
        "ROWS": TILE_ROWS,
        "WIDEN": INTERPRETED,
        "num_warps": 4,
        "num_stages": 3,
        **overlapped(x),
    }
    with on_device_of(x):
        _window_gate_up[(triton.cdiv(width, BLOCK_WIDTH), rows * count)](
            x,
            ids,
            *where,
            inner,
            base,
            rows,
            BLOCK_WIDTH=BLOCK_WIDTH,
            BLOCK_HIDDEN=BLOCK_HIDDEN,
            **common,
        )
        _window_down[(blocks, rows * count)](
            ids,
            weights,
            *where,
            inner,
            scratch,
            counts[rows:],
            counts,
            out if residual is None else residual,
            out if gain is None else gain,
            out,
            base,
            rows,
            eps,
            SETTLE=residual is not None,
            BLOCK_OUT=BLOCK_OUT,
            BLOCK_WIDTH=BLOCK_SUMMED,
            BLOCK=triton.next_power_of_2(hidden),
            **common,
        )
    return out
