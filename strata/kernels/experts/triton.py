"""Routing in one launch, the gated expert product in two, experts read where they lie.

Shapes: R rows, H hidden, E experts a layer, N over all layers, k experts a token, I expert width,
S slots. Everything is a function of its own row, so bits do not depend on how many there are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of

MAX_CHUNKS = 8
"""Parts that an expert's width is cut into, so that 8 programs share one expert's bytes."""


@triton.jit
def _route(
    x_ptr,
    router_ptr,
    ids_ptr,
    weights_ptr,
    experts,
    hidden,
    COUNT: tl.constexpr,
    NORMALISE: tl.constexpr,
    PROJECT: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_HIDDEN: tl.constexpr,
):
    """Write one row's best experts, best first, equal ones from the lowest number.

    With PROJECT, x is the row and the router's product is taken here, rounded as a product of
    that type is; without, x holds logits.
    """
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    inside = e < experts
    if PROJECT:
        logits = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, hidden, BLOCK_HIDDEN):
            h = start + tl.arange(0, BLOCK_HIDDEN)
            x = tl.load(x_ptr + row * hidden + h, mask=h < hidden, other=0.0).to(tl.float32)
            mask = inside[:, None] & (h < hidden)[None, :]
            w = tl.load(router_ptr + e[:, None] * hidden + h[None, :], mask=mask, other=0.0)
            logits += tl.sum(w.to(tl.float32) * x[None, :], 1)
        logits = logits.to(x_ptr.dtype.element_ty).to(tl.float32)
        logits = tl.where(inside, logits, float("-inf"))
    else:
        logits = tl.load(x_ptr + row * experts + e, mask=inside, other=float("-inf"))
        logits = logits.to(tl.float32)
    share = tl.exp(logits - tl.max(logits, 0))
    share = share / tl.sum(share, 0)
    left = tl.where(inside, share, -1.0)
    place = tl.full((BLOCK,), -1, tl.int32)
    total = 0.0
    for j in tl.static_range(COUNT):
        best = tl.max(left, 0)
        chosen = tl.min(tl.where(left == best, e, BLOCK), 0)
        place = tl.where(e == chosen, j, place)
        left = tl.where(e == chosen, -1.0, left)
        total += best
    if NORMALISE:
        share = share / total
    tl.store(ids_ptr + row * COUNT + place, e.to(ids_ptr.dtype.element_ty), mask=place >= 0)
    weights = share.to(weights_ptr.dtype.element_ty)
    tl.store(weights_ptr + row * COUNT + place, weights, mask=place >= 0)


@triton.jit(do_not_specialize=["base"])
def _partial_product(
    x_ptr,
    ids_ptr,
    weights_ptr,
    pool_ptr,
    host_ptr,
    table_ptr,
    out_ptr,
    base,
    COUNT: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    POOLED: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK_HIDDEN: tl.constexpr,
):
    """Write what BLOCK_WIDTH of an expert's inner values give one row, in float32."""
    pair = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    listed = tl.load(ids_ptr + pair).to(tl.int64)
    if listed >= 0:
        expert = listed + base
        size: tl.constexpr = 3 * WIDTH * HIDDEN
        if POOLED:
            slot = tl.load(table_ptr + expert).to(tl.int64)
            in_place = host_ptr + expert * size
            blob = tl.where(slot >= 0, pool_ptr + slot * size, in_place)
        else:
            blob = pool_ptr + expert * size
        i = chunk * BLOCK_WIDTH + tl.arange(0, BLOCK_WIDTH)
        gate = tl.zeros((BLOCK_WIDTH,), tl.float32)
        up = tl.zeros((BLOCK_WIDTH,), tl.float32)
        for start in range(0, HIDDEN, BLOCK_HIDDEN):
            h = start + tl.arange(0, BLOCK_HIDDEN)
            x_at = x_ptr + (pair // COUNT) * HIDDEN + h
            x = tl.load(x_at, mask=h < HIDDEN, other=0.0).to(tl.float32)[None, :]
            mask = (i < WIDTH)[:, None] & (h < HIDDEN)[None, :]
            at = blob + i[:, None] * HIDDEN + h[None, :]
            w_gate = tl.load(at, mask=mask, other=0.0).to(tl.float32)
            w_up = tl.load(at + WIDTH * HIDDEN, mask=mask, other=0.0).to(tl.float32)
            gate += tl.sum(w_gate * x, 1)
            up += tl.sum(w_up * x, 1)
        weight = tl.load(weights_ptr + pair).to(tl.float32)
        inner = gate * tl.sigmoid(gate) * up * weight
        for start in range(0, HIDDEN, BLOCK_HIDDEN):
            h = start + tl.arange(0, BLOCK_HIDDEN)
            mask = (i < WIDTH)[:, None] & (h < HIDDEN)[None, :]
            at = blob + (2 * WIDTH + i)[:, None] * HIDDEN + h[None, :]
            w_down = tl.load(at, mask=mask, other=0.0).to(tl.float32)
            part = tl.sum(w_down * inner[:, None], 0)
            out = out_ptr + (pair * tl.num_programs(1) + chunk) * HIDDEN + h
            tl.store(out, part, mask=h < HIDDEN)


@triton.jit
def _sum_parts(
    parts_ptr,
    ids_ptr,
    out_ptr,
    COUNT: tl.constexpr,
    CHUNKS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write one row's sum over its experts in router order, each one's parts in order."""
    row = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for j in range(COUNT):
        pair = row * COUNT + j
        mask = h < tl.where(tl.load(ids_ptr + pair) >= 0, HIDDEN, 0)
        for c in tl.static_range(CHUNKS):
            at = parts_ptr + (pair * CHUNKS + c) * HIDDEN + h
            total += tl.load(at, mask=mask, other=0.0)
    tl.store(out_ptr + row * HIDDEN + h, total.to(out_ptr.dtype.element_ty), mask=h < HIDDEN)


def route(
    x: torch.Tensor,
    *,
    count: int,
    normalise: bool,
    router: torch.Tensor | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids [R, k] and weights [R, k] from logits `x` [R, E].

    With `router` [E, H] the logits are its product with rows `x` [R, H]. `out` are buffers for
    captured launches: ids of any integer type and weights.
    """
    rows = len(x)
    hidden = x.shape[1] if router is not None else 0
    experts = x.shape[1] if router is None else len(router)
    if out is None:
        ids = torch.empty(rows, count, dtype=torch.int64, device=x.device)
        out = ids, torch.empty(rows, count, dtype=x.dtype, device=x.device)
    x = x.contiguous()
    block = max(triton.next_power_of_2(experts), 16)
    with on_device_of(x):
        _route[(rows,)](
            x,
            x if router is None else router,
            *out,
            experts,
            hidden,
            COUNT=count,
            NORMALISE=normalise,
            PROJECT=router is not None,
            BLOCK=block,
            BLOCK_HIDDEN=max(16, min(triton.next_power_of_2(max(hidden, 1)), 16384 // block)),
            num_warps=1 if router is None and block <= 256 else 8,
        )
    return out


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
) -> torch.Tensor:
    """Return the weighted sum [R, H] over each row's experts; see the package for the contract.

    `parts` [R, k, `part_count`, H] float32 and `out` [R, H] are buffers for captured launches.
    """
    (rows, count), (hidden, width) = ids.shape, (x.shape[1], pool.shape[1] // 3)
    assert pool.is_contiguous()
    assert (table is None) == (host is None), "a table names slots or places in host memory"
    assert host is None or host.is_contiguous()
    x, ids, weights = x.contiguous(), ids.contiguous(), weights.contiguous()
    chunks = part_count(width)
    if parts is None:
        shape = (rows, count, chunks, hidden)
        parts = torch.empty(shape, dtype=torch.float32, device=x.device)
    if out is None:
        out = torch.empty_like(x)
    block_width = _block_width(width)
    block_hidden = max(16, min(triton.next_power_of_2(hidden), 4096 // block_width))
    block = min(triton.next_power_of_2(hidden), 256)
    with on_device_of(x):
        _partial_product[(rows * count, chunks)](
            x,
            ids,
            weights,
            pool,
            pool if host is None else host,
            ids if table is None else table,
            parts,
            base,
            COUNT=count,
            HIDDEN=hidden,
            WIDTH=width,
            POOLED=table is not None,
            BLOCK_WIDTH=block_width,
            BLOCK_HIDDEN=block_hidden,
            num_warps=4,
        )
        _sum_parts[(rows, triton.cdiv(hidden, block))](
            parts, ids, out, COUNT=count, CHUNKS=chunks, HIDDEN=hidden, BLOCK=block, num_warps=2
        )
    return out


def part_count(width: int) -> int:
    """Return the parts that an expert of `width` is summed from; a constant of the model."""
    return -(-width // _block_width(width))


def _block_width(width: int) -> int:
    return max(16, int(triton.next_power_of_2(-(-width // MAX_CHUNKS))))
