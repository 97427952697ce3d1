"""Programs of a row each reduce and project a part of a head; the last adds, norms and routes.

Shapes: R rows, Q query heads, D head dimension, H hidden, E experts, k experts a token, N splits.
Lane i of n adds splits i, i + n, ..., then lanes are summed; heads are added in their order. So a
row's bits depend on nothing but the row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of
from strata.kernels.experts.routing import choose_experts
from strata.kernels.out_proj import Router, chunk_count
from strata.kernels.overlap import let_next_begin, overlapped, wait_for_previous
from strata.kernels.paged_attention import Splits
from strata.kernels.settle import arrive_last, load_row, settle_row

LANES = 4096
"""Values of splits that are reduced side by side."""
NUM_WARPS = 8


@triton.jit
def _reduce(
    sums_ptr, tops_ptr, totals_ptr, d, count, DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """Return values `d` of the attention of one query from its first `count` splits."""
    lane = tl.arange(0, LANES)
    tops = tl.full([LANES], float("-inf"), tl.float32)
    for start in range(0, count, LANES):
        s = start + lane
        tops = tl.maximum(tops, tl.load(tops_ptr + s, mask=s < count, other=float("-inf")))
    top = tl.max(tops, 0)
    pivot = tl.where(top == float("-inf"), 0.0, top)
    totals = tl.zeros([LANES], tl.float32)
    sums = tl.zeros([LANES, BLOCK_D], tl.float32)
    for start in range(0, count, LANES):
        s = start + lane
        mine = tl.load(tops_ptr + s, mask=s < count, other=float("-inf"))
        there = mine != float("-inf")  # a split of masked cells has nothing to add
        share = tl.exp2(mine - pivot)
        # Read in any case: a split whose scores are all NaN has no largest one either, for a
        # maximum passes over NaN, but its total is NaN, too.
        totals += tl.load(totals_ptr + s, mask=s < count, other=0.0) * share
        at = sums_ptr + s.to(tl.int64)[:, None] * DIM + d[None, :]
        mask = there[:, None] & (d[None, :] < DIM)
        sums += tl.load(at, mask=mask, other=0.0) * share[:, None]
    return tl.sum(sums, 0) / tl.sum(totals, 0)


@triton.jit(
    do_not_specialize=["splits"], do_not_specialize_on_alignment=["positions_ptr", "row_ptr"]
)
def _project_out(
    sums_ptr,
    stats_ptr,
    positions_ptr,
    row_ptr,
    weight_ptr,
    gain_ptr,
    router_ptr,
    residual_ptr,
    normed_ptr,
    parts_ptr,
    counter_ptr,
    ids_ptr,
    weights_ptr,
    splits,
    eps,
    DENSE: tl.constexpr,
    ROW: tl.constexpr,
    HEADS: tl.constexpr,
    CHUNKS: tl.constexpr,
    DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    HIDDEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    COUNT: tl.constexpr,
    NORMALISE: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    BLOCK_CHUNK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    part = tl.program_id(0)
    head = part // CHUNKS
    row = tl.program_id(1).to(tl.int64)
    d = part % CHUNKS * BLOCK_D + tl.arange(0, BLOCK_D)
    h = tl.arange(0, BLOCK)
    let_next_begin(OVERLAP)
    gain = load_row(gain_ptr, h, HIDDEN)
    columns = weight_ptr + head * DIM + d[None, :]
    whole: tl.constexpr = BLOCK_OUT >= HIDDEN
    if whole:
        mask = (h < HIDDEN)[:, None] & (d < DIM)[None, :]
        w = tl.load(columns + h[:, None] * (HEADS * DIM), mask=mask, other=0.0)
    wait_for_previous(OVERLAP)
    count = splits
    if DENSE:
        count = tl.minimum(tl.load(positions_ptr + row).to(tl.int32) // SPLIT + 1, splits)
    row_from = tl.load(row_ptr) if ROW else row
    x = load_row(residual_ptr + row_from * HIDDEN, h, HIDDEN)
    query = row * HEADS + head
    tops_ptr = stats_ptr + query * splits
    totals_ptr = tops_ptr + tl.num_programs(1).to(tl.int64) * HEADS * splits
    sums_ptr += query * splits * DIM
    attended = _reduce(sums_ptr, tops_ptr, totals_ptr, d, count, DIM, BLOCK_D, LANES)
    attended = attended.to(residual_ptr.dtype.element_ty).to(tl.float32)
    parts_ptr += row * (HEADS * CHUNKS * HIDDEN)
    if whole:
        given = tl.sum(w.to(tl.float32) * attended[None, :], 1)
        tl.store(parts_ptr + part * HIDDEN + h, given, mask=h < HIDDEN)
    else:
        for start in range(0, HIDDEN, BLOCK_OUT):
            o = start + tl.arange(0, BLOCK_OUT)
            mask = (o < HIDDEN)[:, None] & (d < DIM)[None, :]
            w = tl.load(columns + o[:, None] * (HEADS * DIM), mask=mask, other=0.0)
            given = tl.sum(w.to(tl.float32) * attended[None, :], 1)
            tl.store(parts_ptr + part * HIDDEN + o, given, mask=o < HIDDEN)
    if arrive_last(counter_ptr + row, HEADS * CHUNKS):
        settle_row(
            x,
            gain,
            parts_ptr,
            residual_ptr + row * HIDDEN,
            normed_ptr + row * HIDDEN,
            h,
            eps,
            HEADS * CHUNKS,
            HIDDEN,
        )
        if EXPERTS > 0:
            tl.debug_barrier()
            choose_experts(
                normed_ptr + row * HIDDEN,
                router_ptr,
                ids_ptr + row * COUNT,
                weights_ptr + row * COUNT,
                EXPERTS,
                HIDDEN,
                COUNT,
                NORMALISE,
                True,
                BLOCK_EXPERTS,
                BLOCK_CHUNK,
            )


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
    """Launch over heads x rows; see the package for the contract."""
    (rows, hidden), (queries, count, dim) = normed.shape, splits.sums.shape
    heads = queries // rows
    chunks = chunk_count(dim)
    experts, chosen = (0, 1) if router is None else (router.weight.shape[0], router.ids.shape[1])
    block = triton.next_power_of_2(hidden)
    block_d = max(16, triton.next_power_of_2(-(-dim // chunks)))
    block_experts = max(16, triton.next_power_of_2(experts))
    with on_device_of(residual):
        _project_out[(heads * chunks, rows)](
            splits.sums,
            splits.stats,
            normed if splits.positions is None else splits.positions,
            normed if row is None else row,
            weight,
            gain,
            gain if router is None else router.weight.weight,
            residual,
            normed,
            parts,
            counter,
            counter if router is None else router.ids,
            normed if router is None else router.weights,
            count,
            eps,
            DENSE=splits.positions is not None,
            ROW=row is not None,
            HEADS=heads,
            CHUNKS=chunks,
            DIM=dim,
            SPLIT=splits.cells,
            HIDDEN=hidden,
            EXPERTS=experts,
            COUNT=chosen,
            NORMALISE=router is not None and router.normalise,
            LANES=max(16, LANES // block_d),
            BLOCK_D=block_d,
            BLOCK_OUT=min(block, 16384 // block_d),
            BLOCK=block,
            BLOCK_EXPERTS=block_experts,
            BLOCK_CHUNK=max(16, min(block, 16384 // block_experts)),
            num_warps=NUM_WARPS,
            **overlapped(residual),
        )
