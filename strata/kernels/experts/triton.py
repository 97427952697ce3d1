"""Routing in one launch, the gated expert product in another, experts read where they lie.

Shapes: R rows, H hidden, E experts a layer, N over all layers, k experts a token, I expert width,
S slots. Everything is a function of its own row, so bits do not depend on how many there are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of
from strata.kernels.experts import block_width, part_count
from strata.kernels.experts.routing import choose_experts
from strata.kernels.overlap import let_next_begin, overlapped, wait_for_previous
from strata.kernels.settle import arrive_last, load_row, settle_row

NUM_WARPS = 2


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
    row = tl.program_id(0).to(tl.int64)
    choose_experts(
        x_ptr + row * (hidden if PROJECT else experts),
        router_ptr,
        ids_ptr + row * COUNT,
        weights_ptr + row * COUNT,
        experts,
        hidden,
        COUNT,
        NORMALISE,
        PROJECT,
        BLOCK,
        BLOCK_HIDDEN,
    )


@triton.jit
def _sum_parts(
    parts_ptr,
    ids_ptr,
    out_ptr,
    row,
    COUNT: tl.constexpr,
    CHUNKS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write one row's sum over its experts in router order; padding wrote no parts."""
    h = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for j in range(COUNT):
        pair = row * COUNT + j
        mask = h < tl.where(tl.load(ids_ptr + pair) >= 0, HIDDEN, 0)
        for c in tl.static_range(CHUNKS):
            at = parts_ptr + (pair * CHUNKS + c) * HIDDEN + h
            total += tl.load(at, mask=mask, other=0.0, cache_modifier=".cg")
    tl.store(out_ptr + row * HIDDEN + h, total.to(out_ptr.dtype.element_ty), mask=h < HIDDEN)


@triton.jit(do_not_specialize=["base"])
def _product(
    x_ptr,
    ids_ptr,
    weights_ptr,
    pool_ptr,
    host_ptr,
    table_ptr,
    parts_ptr,
    counter_ptr,
    residual_ptr,
    gain_ptr,
    out_ptr,
    base,
    eps,
    COUNT: tl.constexpr,
    CHUNKS: tl.constexpr,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    POOLED: tl.constexpr,
    SETTLE: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK_HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Write what BLOCK_WIDTH of an expert's inner values give one row, in float32.

    The last program of a row adds the parts in router order, an expert's in their order: into the
    residual, whose norm is the output, with SETTLE; alone without.
    """
    pair = tl.program_id(0).to(tl.int64)
    row = pair // COUNT
    chunk = tl.program_id(1)
    every = tl.arange(0, BLOCK)
    let_next_begin(OVERLAP)
    gain = load_row(gain_ptr, every, HIDDEN) if SETTLE else 0.0
    wait_for_previous(OVERLAP)
    residual = load_row(residual_ptr + row * HIDDEN, every, HIDDEN) if SETTLE else 0.0
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
        rows = blob + i[:, None] * HIDDEN
        weight = tl.load(weights_ptr + pair).to(tl.float32)
        parts = parts_ptr + (pair * CHUNKS + chunk) * HIDDEN
        if BLOCK_HIDDEN >= HIDDEN:  # every byte of the program is asked for at once
            h = tl.arange(0, BLOCK_HIDDEN)
            mask = (i < WIDTH)[:, None] & (h < HIDDEN)[None, :]
            w_gate = tl.load(rows + h[None, :], mask=mask, other=0.0)
            w_up = tl.load(rows + WIDTH * HIDDEN + h[None, :], mask=mask, other=0.0)
            w_down = tl.load(rows + 2 * WIDTH * HIDDEN + h[None, :], mask=mask, other=0.0)
            x = load_row(x_ptr + row * HIDDEN, h, HIDDEN)[None, :]
            gate = tl.sum(w_gate.to(tl.float32) * x, 1)
            up = tl.sum(w_up.to(tl.float32) * x, 1)
            inner = gate * tl.sigmoid(gate) * up * weight
            part = tl.sum(w_down.to(tl.float32) * inner[:, None], 0)
            tl.store(parts + h, part, mask=h < HIDDEN)
        else:
            gate = tl.zeros((BLOCK_WIDTH,), tl.float32)
            up = tl.zeros((BLOCK_WIDTH,), tl.float32)
            for start in range(0, HIDDEN, BLOCK_HIDDEN):
                h = start + tl.arange(0, BLOCK_HIDDEN)
                mask = (i < WIDTH)[:, None] & (h < HIDDEN)[None, :]
                x = load_row(x_ptr + row * HIDDEN, h, HIDDEN)[None, :]
                w_gate = tl.load(rows + h[None, :], mask=mask, other=0.0)
                w_up = tl.load(rows + WIDTH * HIDDEN + h[None, :], mask=mask, other=0.0)
                gate += tl.sum(w_gate.to(tl.float32) * x, 1)
                up += tl.sum(w_up.to(tl.float32) * x, 1)
            inner = gate * tl.sigmoid(gate) * up * weight
            for start in range(0, HIDDEN, BLOCK_HIDDEN):
                h = start + tl.arange(0, BLOCK_HIDDEN)
                mask = (i < WIDTH)[:, None] & (h < HIDDEN)[None, :]
                w_down = tl.load(rows + 2 * WIDTH * HIDDEN + h[None, :], mask=mask, other=0.0)
                part = tl.sum(w_down.to(tl.float32) * inner[:, None], 0)
                tl.store(parts + h, part, mask=h < HIDDEN)
    if arrive_last(counter_ptr + row, COUNT * CHUNKS):
        if SETTLE:
            settle_row(
                residual,
                gain,
                parts_ptr + row * (COUNT * CHUNKS * HIDDEN),
                residual_ptr + row * HIDDEN,
                out_ptr + row * HIDDEN,
                every,
                eps,
                COUNT * CHUNKS,
                HIDDEN,
            )
        else:
            _sum_parts(parts_ptr, ids_ptr, out_ptr, row, COUNT, CHUNKS, HIDDEN, BLOCK)


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
    counter: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gain: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """Return the weighted sum [R, H] over each row's experts; see the package for the contract.

    `parts` [R, k, `part_count`, H] float32, `counter` [R] int32 zeros and `out` [R, H] are buffers
    for captured launches; `out` may be `x` itself. With `residual` and `gain` no id is padding.
    """
    (rows, count), (hidden, width) = ids.shape, (x.shape[1], pool.shape[1] // 3)
    assert pool.is_contiguous()
    assert (table is None) == (host is None), "a table names slots or places in host memory"
    assert host is None or host.is_contiguous()
    assert (residual is None) == (gain is None), "a residual is added for the norm that follows"
    x, ids, weights = x.contiguous(), ids.contiguous(), weights.contiguous()
    chunks = part_count(width)
    if parts is None:
        shape = (rows, count, chunks, hidden)
        parts = torch.empty(shape, dtype=torch.float32, device=x.device)
    if counter is None:
        counter = torch.zeros(rows, dtype=torch.int32, device=x.device)
    if out is None:
        out = torch.empty_like(x)
    inner = block_width(width)
    block = triton.next_power_of_2(hidden)
    with on_device_of(x):
        _product[(rows * count, chunks)](
            x,
            ids,
            weights,
            pool,
            pool if host is None else host,
            ids if table is None else table,
            parts,
            counter,
            out if residual is None else residual,
            out if gain is None else gain,
            out,
            base,
            eps,
            COUNT=count,
            CHUNKS=chunks,
            HIDDEN=hidden,
            WIDTH=width,
            POOLED=table is not None,
            SETTLE=residual is not None,
            BLOCK_WIDTH=inner,
            BLOCK_HIDDEN=max(16, min(block, 4096 // inner)),
            BLOCK=block,
            num_warps=NUM_WARPS,
            **overlapped(x),
        )
    return out
