"""Experts of many rows in Triton: route, sort the pairs by expert, two grouped products, sum.

Shapes: n rows, H hidden, E experts, k experts a row, I expert width. A pair is one expert of one
row, number row * k + place. Every product runs over fixed blocks in one order, the sum in
router order, so a row's bits depend on nothing but the row.
"""

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of
from strata.kernels.interpreted import INTERPRETED

BLOCK_ROWS = 64
BLOCK_PAIRS = 64
BLOCK_COLUMNS = 64
BLOCK_INNER = 64
SORT_BLOCK = 4096
SUM_BLOCK = 2048


@triton.jit(do_not_specialize=["rows"])
def _route(
    x_ptr,
    norm_ptr,
    router_ptr,
    normed_ptr,
    ids_ptr,
    weights_ptr,
    rows,
    eps,
    HIDDEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    COUNT: tl.constexpr,
    NORMALISE: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Write normed rows, and their best experts, best first, equal ones from the lowest number."""
    r = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    given = r < rows
    row = r.to(tl.int64)
    e = tl.arange(0, BLOCK_E)
    kind = x_ptr.dtype.element_ty
    squares = tl.zeros([BLOCK_M, BLOCK_H], tl.float32)
    for start in range(0, HIDDEN, BLOCK_H):
        h = start + tl.arange(0, BLOCK_H)
        mask = given[:, None] & (h < HIDDEN)[None, :]
        x = tl.load(x_ptr + row[:, None] * HIDDEN + h[None, :], mask=mask, other=0.0)
        x = x.to(tl.float32)
        squares += x * x
    inverse = tl.rsqrt(tl.sum(squares, 1) / HIDDEN + eps)[:, None]
    logits = tl.zeros([BLOCK_M, BLOCK_E], tl.float32)
    for start in range(0, HIDDEN, BLOCK_H):
        h = start + tl.arange(0, BLOCK_H)
        inside = h < HIDDEN
        mask = given[:, None] & inside[None, :]
        x = tl.load(x_ptr + row[:, None] * HIDDEN + h[None, :], mask=mask, other=0.0)
        gain = tl.load(norm_ptr + h, mask=inside, other=0.0).to(tl.float32)[None, :]
        x = (x.to(tl.float32) * inverse * gain).to(kind)
        tl.store(normed_ptr + row[:, None] * HIDDEN + h[None, :], x, mask=mask)
        mask = (e < EXPERTS)[:, None] & inside[None, :]
        w = tl.load(router_ptr + e[:, None] * HIDDEN + h[None, :], mask=mask, other=0.0)
        if WIDEN:
            x, w = x.to(tl.float32), w.to(tl.float32)
        logits = tl.dot(x, tl.trans(w), logits, input_precision="ieee")
    logits = logits.to(kind).to(tl.float32)
    logits = tl.where((e < EXPERTS)[None, :], logits, float("-inf"))
    share = tl.exp(logits - tl.max(logits, 1)[:, None])
    share = share / tl.sum(share, 1)[:, None]
    left = tl.where((e < EXPERTS)[None, :], share, -1.0)
    place = tl.full([BLOCK_M, BLOCK_E], -1, tl.int32)
    total = tl.zeros([BLOCK_M], tl.float32)
    for j in tl.static_range(COUNT):
        best = tl.max(left, 1)
        chosen = tl.min(tl.where(left == best[:, None], e[None, :], BLOCK_E), 1)
        taken = e[None, :] == chosen[:, None]
        place = tl.where(taken, j, place)
        left = tl.where(taken, -1.0, left)
        total += best
    if NORMALISE:
        share = share / total[:, None]
    mask = given[:, None] & (place >= 0)
    at = row[:, None] * COUNT + place
    tl.store(ids_ptr + at, tl.broadcast_to(e[None, :], (BLOCK_M, BLOCK_E)), mask=mask)
    tl.store(weights_ptr + at, share.to(weights_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["pairs"])
def _sort(ids_ptr, order_ptr, starts_ptr, pairs, BLOCK: tl.constexpr):
    """List the pairs of one expert within one block, ascending, behind all that come before."""
    expert, own_start = tl.program_id(0), tl.program_id(1) * BLOCK
    before = tl.zeros([BLOCK], tl.int32)
    for start in range(0, pairs, BLOCK):
        at = start + tl.arange(0, BLOCK)
        ids = tl.load(ids_ptr + at, mask=at < pairs, other=0x7FFFFFFF)
        limit = tl.where(start < own_start, expert, expert - 1)
        before += (ids <= limit).to(tl.int32)
    first = tl.sum(before, 0)
    at = own_start + tl.arange(0, BLOCK)
    own = tl.load(ids_ptr + at, mask=at < pairs, other=0x7FFFFFFF) == expert
    rank = tl.cumsum(own.to(tl.int32), 0)
    tl.store(order_ptr + first + rank - 1, at, mask=own)
    if own_start == 0:
        tl.store(starts_ptr + expert, first)
    if own_start + BLOCK >= pairs:
        tl.store(starts_ptr + expert + 1, first + tl.max(rank, 0))


@triton.jit
def _find_block(starts_ptr, EXPERTS: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return this program's expert, its first entry in the order, and where the expert ends.

    An expert's pairs fill whole blocks of their own; a program behind the last block gets an
    expert past all.
    """
    block = tl.program_id(0)
    e = tl.arange(0, BLOCK_E)
    inside = e < EXPERTS
    first = tl.load(starts_ptr + e, mask=inside, other=0)
    last = tl.load(starts_ptr + e + 1, mask=inside, other=0)
    blocks = (last - first + BLOCK_M - 1) // BLOCK_M
    upto = tl.cumsum(blocks, 0)
    expert = tl.sum(((upto <= block) & inside).to(tl.int32), 0)
    own = e == expert
    skip = block - tl.sum(tl.where(own, upto - blocks, 0), 0)
    entry = tl.sum(tl.where(own, first, 0), 0) + skip * BLOCK_M
    return expert, entry, tl.sum(tl.where(own, last, 0), 0)


@triton.jit
def _gate_up(
    x_ptr,
    experts_ptr,
    order_ptr,
    starts_ptr,
    inner_ptr,
    EXPERTS: tl.constexpr,
    COUNT: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Write silu(gate) * up of a block of one expert's pairs, in their sorted order."""
    expert, entry, last = _find_block(starts_ptr, EXPERTS, BLOCK_E, BLOCK_M)
    if expert < EXPERTS:
        at = entry + tl.arange(0, BLOCK_M)
        given = at < last
        row = (tl.load(order_ptr + at, mask=given, other=0) // COUNT).to(tl.int64)
        i = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        blob = experts_ptr + expert.to(tl.int64) * (3 * WIDTH * HIDDEN)
        gate = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, HIDDEN, BLOCK_H):
            h = start + tl.arange(0, BLOCK_H)
            inside = (h < HIDDEN)[None, :]
            mask = given[:, None] & inside
            x = tl.load(x_ptr + row[:, None] * HIDDEN + h[None, :], mask=mask, other=0.0)
            mask = (i < WIDTH)[:, None] & inside
            w_gate = tl.load(blob + i[:, None] * HIDDEN + h[None, :], mask=mask, other=0.0)
            w_up = tl.load(blob + (WIDTH + i)[:, None] * HIDDEN + h[None, :], mask=mask, other=0.0)
            if WIDEN:
                x, w_gate, w_up = x.to(tl.float32), w_gate.to(tl.float32), w_up.to(tl.float32)
            gate = tl.dot(x, tl.trans(w_gate), gate, input_precision="ieee")
            up = tl.dot(x, tl.trans(w_up), up, input_precision="ieee")
        inner = gate / (1.0 + tl.exp(-gate)) * up
        to = inner_ptr + at.to(tl.int64)[:, None] * WIDTH + i[None, :]
        mask = given[:, None] & (i < WIDTH)[None, :]
        tl.store(to, inner.to(inner_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _down(
    inner_ptr,
    experts_ptr,
    order_ptr,
    starts_ptr,
    out_ptr,
    EXPERTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_I: tl.constexpr,
):
    """Write the output of a block of one expert's pairs, each to the place of its pair."""
    expert, entry, last = _find_block(starts_ptr, EXPERTS, BLOCK_E, BLOCK_M)
    if expert < EXPERTS:
        at = entry + tl.arange(0, BLOCK_M)
        given = at < last
        pair = tl.load(order_ptr + at, mask=given, other=0).to(tl.int64)
        h = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        blob = experts_ptr + expert.to(tl.int64) * (3 * WIDTH * HIDDEN)
        sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, WIDTH, BLOCK_I):
            i = start + tl.arange(0, BLOCK_I)
            mask = given[:, None] & (i < WIDTH)[None, :]
            from_ = inner_ptr + at.to(tl.int64)[:, None] * WIDTH + i[None, :]
            a = tl.load(from_, mask=mask, other=0.0)
            mask = (i < WIDTH)[:, None] & (h < HIDDEN)[None, :]
            w_at = blob + (2 * WIDTH + i)[:, None] * HIDDEN + h[None, :]
            w = tl.load(w_at, mask=mask, other=0.0)
            if WIDEN:
                a, w = a.to(tl.float32), w.to(tl.float32)
            sums = tl.dot(a, w, sums, input_precision="ieee")
        mask = given[:, None] & (h < HIDDEN)[None, :]
        to = out_ptr + pair[:, None] * HIDDEN + h[None, :]
        tl.store(to, sums.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows"])
def _add_weighted(
    parts_ptr,
    weights_ptr,
    x_ptr,
    rows,
    COUNT: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add to x the weighted sum of each row's parts, in router order."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < rows.to(tl.int64) * HIDDEN
    row, h = at // HIDDEN, at % HIDDEN
    total = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range(COUNT):
        pair = row * COUNT + j
        weight = tl.load(weights_ptr + pair, mask=mask, other=0.0).to(tl.float32)
        total += weight * tl.load(parts_ptr + pair * HIDDEN + h, mask=mask, other=0.0).to(
            tl.float32
        )
    total += tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(x_ptr + at, total.to(x_ptr.dtype.element_ty), mask=mask)


def norm_and_route(
    x: torch.Tensor,
    norm: torch.Tensor,
    router: torch.Tensor,
    eps: float,
    *,
    normalise: bool,
    normed: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
) -> None:
    """Write the normed rows and their experts; see the package for the contract."""
    (rows, hidden), count = x.shape, ids.shape[1]
    block_e = max(16, triton.next_power_of_2(len(router)))
    # Logits of a tile stay in registers, its part of the router in shared memory.
    block_m = BLOCK_ROWS if block_e <= 64 else 16
    with on_device_of(x):
        _route[(triton.cdiv(rows, block_m),)](
            x,
            norm,
            router,
            normed,
            ids,
            weights,
            rows,
            eps,
            HIDDEN=hidden,
            EXPERTS=len(router),
            COUNT=count,
            NORMALISE=normalise,
            WIDEN=INTERPRETED and x.dtype != torch.float32,
            BLOCK_M=block_m,
            BLOCK_E=block_e,
            BLOCK_H=max(16, min(BLOCK_INNER, 16384 // block_e)),
            num_warps=4 if block_e <= 256 else 8,
        )


def sort_pairs(ids: torch.Tensor, *, order: torch.Tensor, starts: torch.Tensor) -> None:
    """Write the pairs of `ids` [n, k] by expert to `order` [n * k], and where each starts."""
    with on_device_of(ids):
        pairs = ids.numel()
        grid = (len(starts) - 1, triton.cdiv(pairs, SORT_BLOCK))
        _sort[grid](ids, order, starts, pairs, BLOCK=SORT_BLOCK, num_warps=4)


def add_experts(
    normed: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    *,
    order: torch.Tensor,
    starts: torch.Tensor,
    inner: torch.Tensor,
    parts: torch.Tensor,
    x: torch.Tensor,
) -> None:
    """Add to `x` what the experts give; see the package for the contract."""
    (rows, hidden), count = normed.shape, weights.shape[1]
    number, width = len(experts), experts.shape[1] // 3
    # Every expert may leave its last block part empty.
    blocks = triton.cdiv(rows * count, BLOCK_PAIRS) + min(number, rows * count)
    block_e = max(16, triton.next_power_of_2(number))
    widen = INTERPRETED and x.dtype != torch.float32
    with on_device_of(x):
        _gate_up[(blocks, triton.cdiv(width, BLOCK_COLUMNS))](
            normed,
            experts,
            order,
            starts,
            inner,
            EXPERTS=number,
            COUNT=count,
            HIDDEN=hidden,
            WIDTH=width,
            WIDEN=widen,
            BLOCK_E=block_e,
            BLOCK_M=BLOCK_PAIRS,
            BLOCK_N=BLOCK_COLUMNS,
            BLOCK_H=BLOCK_INNER,
            num_warps=4,
            num_stages=3,
        )
        _down[(blocks, triton.cdiv(hidden, 2 * BLOCK_COLUMNS))](
            inner,
            experts,
            order,
            starts,
            parts,
            EXPERTS=number,
            HIDDEN=hidden,
            WIDTH=width,
            WIDEN=widen,
            BLOCK_E=block_e,
            BLOCK_M=BLOCK_PAIRS,
            BLOCK_N=2 * BLOCK_COLUMNS,
            BLOCK_I=BLOCK_INNER,
            num_warps=4,
            num_stages=3,
        )
        _add_weighted[(triton.cdiv(rows * hidden, SUM_BLOCK),)](
            parts, weights, x, rows, COUNT=count, HIDDEN=hidden, BLOCK=SUM_BLOCK, num_warps=8
        )
