"""From split attention to the feed-forward's input at large shapes: reduce, project, choose.

Shapes: R rows, Q query heads, D head dimension, H hidden, E experts, k experts a token, N splits.
Three launches: queries are reduced; blocks of outputs are projected and added; the norm is taken by
every program that multiplies it with some of the router, and the last one of a row chooses.
Weights are asked for before the launch before has ended.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of
from strata.kernels.experts.routing import rank_experts
from strata.kernels.interpreted import INTERPRETED
from strata.kernels.out_proj import Router, chunk_count
from strata.kernels.out_proj.triton import LANES, _reduce
from strata.kernels.overlap import let_next_begin, overlapped, wait_for_previous
from strata.kernels.paged_attention import Splits
from strata.kernels.settle import arrive_last, load_row, norm_row
from strata.kernels.wide import (
    BLOCK_OUT,
    SPLIT,
    TILE_ROWS,
    block_count,
    split_count,
)

ROUTER_TILE = 8_192
"""Values of a router that one program multiplies."""
AT_ONCE = tl.constexpr(8)
"""Splits whose loads are all under way at once."""


@triton.jit(do_not_specialize=["splits"], do_not_specialize_on_alignment=["positions_ptr"])
def _reduce_queries(
    sums_ptr,
    stats_ptr,
    positions_ptr,
    out_ptr,
    splits,
    DENSE: tl.constexpr,
    HEADS: tl.constexpr,
    CHUNKS: tl.constexpr,
    DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Write a part of a query's attention, reduced over its splits."""
    part = tl.program_id(0)
    head = part // CHUNKS
    row = tl.program_id(1).to(tl.int64)
    d = part % CHUNKS * BLOCK_D + tl.arange(0, BLOCK_D)
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    count = splits
    if DENSE:
        count = tl.minimum(tl.load(positions_ptr + row).to(tl.int32) // SPLIT + 1, splits)
    query = row * HEADS + head
    tops_ptr = stats_ptr + query * splits
    totals_ptr = tops_ptr + tl.num_programs(1).to(tl.int64) * HEADS * splits
    sums_ptr += query * splits * DIM
    attended = _reduce(sums_ptr, tops_ptr, totals_ptr, d, count, DIM, BLOCK_D, LANES)
    at = out_ptr + query * DIM + d
    tl.store(at, attended.to(out_ptr.dtype.element_ty), mask=d < DIM)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["row_ptr"])
def _add_tile(
    x_ptr,
    weight_ptr,
    gain_ptr,
    row_ptr,
    residual_ptr,
    normed_ptr,
    parts_ptr,
    counter_ptr,
    rows,
    eps,
    ROW: tl.constexpr,
    NORM: tl.constexpr,
    INNER: tl.constexpr,
    HIDDEN: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDEN: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Multiply a tile with every row; the last of a block adds it, with NORM the last of all norms.

    With ROW there is one row, whose residual is read where `row_ptr` says.
    """
    block = tl.program_id(0)
    split = tl.program_id(1)
    m = tl.arange(0, ROWS)
    n = tl.arange(0, BLOCK_OUT)
    o = block * BLOCK_OUT + n
    c = split * BLOCK_INNER + tl.arange(0, BLOCK_INNER)
    let_next_begin(OVERLAP)
    mask = (o < HIDDEN)[:, None] & (c < INNER)[None, :]
    w = tl.load(weight_ptr + o[:, None] * INNER + c[None, :], mask=mask, other=0.0)
    wait_for_previous(OVERLAP)
    inside = (m < rows)[:, None] & (c < INNER)[None, :]
    x = tl.load(x_ptr + m[:, None] * INNER + c[None, :], mask=inside, other=0.0)
    if WIDEN:
        x, w = x.to(tl.float32), w.to(tl.float32)
    given = tl.dot(x, tl.trans(w), input_precision="ieee")
    kept = (m < rows)[:, None] & (o < HIDDEN)[None, :]
    part = parts_ptr + ((block * SPLITS + split) * rows + m)[:, None] * BLOCK_OUT + n[None, :]
    tl.store(part, given, mask=kept)
    if not arrive_last(counter_ptr + 1 + block, SPLITS):
        return
    row_from = tl.load(row_ptr) if ROW else 0
    before = residual_ptr + (m + row_from)[:, None] * HIDDEN + o[None, :]
    total = tl.load(before, mask=kept, other=0.0).to(tl.float32)
    for start in range(0, SPLITS, AT_ONCE):
        for s in tl.static_range(AT_ONCE):
            place = ((block * SPLITS + start + s) * rows + m)[:, None] * BLOCK_OUT + n[None, :]
            there = kept & (start + s < SPLITS)
            total += tl.load(parts_ptr + place, mask=there, other=0.0, cache_modifier=".cg")
    after = residual_ptr + m[:, None] * HIDDEN + o[None, :]
    tl.store(after, total.to(residual_ptr.dtype.element_ty), mask=kept)
    if NORM:  # noqa: SIM102 (one condition is the compiler's)
        if arrive_last(counter_ptr, tl.num_programs(0)):
            h = tl.arange(0, BLOCK)
            for row in range(rows):
                at = residual_ptr + row * HIDDEN + h
                sums = tl.load(at, mask=h < HIDDEN, other=0.0, cache_modifier=".cg")
                gain = load_row(gain_ptr, h, HIDDEN)
                normed = norm_row(sums.to(tl.float32), gain, eps, HIDDEN)
                at = normed_ptr + row * HIDDEN + h
                tl.store(at, normed.to(normed_ptr.dtype.element_ty), mask=h < HIDDEN)


@triton.jit
def _norm_route(
    residual_ptr,
    gain_ptr,
    router_ptr,
    normed_ptr,
    logits_ptr,
    counter_ptr,
    ids_ptr,
    weights_ptr,
    eps,
    HIDDEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    COUNT: tl.constexpr,
    NORMALISE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_ROUTER: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Write a row's norm and the logits of a block of experts; the last program chooses."""
    block = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    h = tl.arange(0, BLOCK)
    e = block * BLOCK_ROUTER + tl.arange(0, BLOCK_ROUTER)
    let_next_begin(OVERLAP)
    gain = load_row(gain_ptr, h, HIDDEN)
    mask = (e < EXPERTS)[:, None] & (h < HIDDEN)[None, :]
    w = tl.load(router_ptr + e[:, None] * HIDDEN + h[None, :], mask=mask, other=0.0)
    wait_for_previous(OVERLAP)
    kind = normed_ptr.dtype.element_ty
    x = norm_row(load_row(residual_ptr + row * HIDDEN, h, HIDDEN), gain, eps, HIDDEN).to(kind)
    if block == 0:
        tl.store(normed_ptr + row * HIDDEN + h, x, mask=h < HIDDEN)
    logits = tl.sum(w.to(tl.float32) * x.to(tl.float32)[None, :], 1).to(kind).to(tl.float32)
    tl.store(logits_ptr + row * EXPERTS + e, logits, mask=e < EXPERTS)
    if arrive_last(counter_ptr + row, tl.num_programs(0)):
        every = tl.arange(0, BLOCK_EXPERTS)
        at = logits_ptr + row * EXPERTS + every
        found = tl.load(at, mask=every < EXPERTS, other=0.0, cache_modifier=".cg")
        ids_ptr += row * COUNT
        weights_ptr += row * COUNT
        rank_experts(found, every, ids_ptr, weights_ptr, EXPERTS, COUNT, NORMALISE, BLOCK_EXPERTS)


def project_out(
    splits: Splits,
    weight: torch.Tensor,
    gain: torch.Tensor,
    *,
    eps: float,
    residual: torch.Tensor,
    normed: torch.Tensor,
    parts: torch.Tensor,
    counter: torch.Tensor,
    router: Router | None,
    row: torch.Tensor | None,
) -> None:
    """Launch all three, the last one with a router alone; see the package for the contract."""
    (rows, hidden), (queries, count, dim) = normed.shape, splits.sums.shape
    heads = queries // rows
    inner, chunks = heads * dim, chunk_count(dim)
    experts, chosen = (0, 1) if router is None else (router.weight.shape[0], router.ids.shape[1])
    block = triton.next_power_of_2(hidden)
    block_d = max(16, triton.next_power_of_2(-(-dim // chunks)))
    blocks, sums = block_count(hidden), split_count(inner)
    scratch = parts.flatten()
    attended = scratch[: rows * inner].view(normed.dtype)
    logits, shared = scratch[rows * inner :], scratch[rows * (inner + experts) :]
    overlap = overlapped(residual)
    with on_device_of(residual):
        _reduce_queries[(heads * chunks, rows)](
            splits.sums,
            splits.stats,
            normed if splits.positions is None else splits.positions,
            attended,
            count,
            DENSE=splits.positions is not None,
            HEADS=heads,
            CHUNKS=chunks,
            DIM=dim,
            SPLIT=splits.cells,
            LANES=max(16, LANES // block_d),
            BLOCK_D=block_d,
            num_warps=8,
            **overlap,
        )
        _add_tile[(blocks, sums)](
            attended,
            weight,
            gain,
            counter if row is None else row,
            residual,
            normed,
            shared,
            counter,
            rows,
            eps,
            ROW=row is not None,
            NORM=router is None,
            INNER=inner,
            HIDDEN=hidden,
            SPLITS=sums,
            BLOCK_INNER=SPLIT,
            BLOCK_OUT=BLOCK_OUT,
            BLOCK=block,
            ROWS=TILE_ROWS,
            WIDEN=INTERPRETED,
            num_warps=4,
            **overlap,
        )
        if router is not None:
            block_router = max(1, ROUTER_TILE // block)
            _norm_route[(triton.cdiv(experts, block_router), rows)](
                residual,
                gain,
                router.weight.weight,
                normed,
                logits,
                counter,
                router.ids,
                router.weights,
                eps,
                HIDDEN=hidden,
                EXPERTS=experts,
                COUNT=chosen,
                NORMALISE=router.normalise,
                BLOCK=block,
                BLOCK_ROUTER=block_router,
                BLOCK_EXPERTS=max(16, triton.next_power_of_2(experts)),
                num_warps=4,
                **overlap,
            )
