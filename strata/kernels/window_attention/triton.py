"""Window attention in Triton: a program a split and K/V head, cells found by their modulus.

Shapes: K K/V heads, G query heads per K/V head, D head dimension.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of
from strata.kernels.interpreted import INTERPRETED
from strata.kernels.overlap import let_next_begin, overlapped, wait_for_previous
from strata.kernels.paged_attention import Splits
from strata.kernels.paged_attention.triton import LOG2_E
from strata.kernels.window_attention import WINDOW_SPLIT


@triton.jit(
    do_not_specialize=["window", "capacity", "splits"],
    do_not_specialize_on_alignment=["position_ptr", "row_ptr"],
)
def _attend_window(
    q_ptr,
    ring_ptr,
    position_ptr,
    row_ptr,
    sums_ptr,
    stats_ptr,
    window,
    capacity,
    splits,
    scale,
    ROW: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WIDEN: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    split = tl.program_id(0)
    head = tl.program_id(1)
    position = tl.load(position_ptr)
    row = tl.load(row_ptr) if ROW else position * 0
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    given = m < GROUP
    query = head * GROUP + m
    at = q_ptr + (row * (KV_HEADS * GROUP) + query)[:, None] * DIM + d[None, :]
    q = tl.load(at, mask=given[:, None] & (d[None, :] < DIM), other=0.0)
    cell = position - window + 1 + split * SPLIT + tl.arange(0, SPLIT)
    wanted = (cell >= 1) & (cell <= position)
    place = tl.where(wanted, cell, 0) % capacity
    at = ring_ptr + (place * (2 * KV_HEADS) + head)[:, None] * DIM + d[None, :]
    mask = wanted[:, None] & (d[None, :] < DIM)
    k = tl.load(at, mask=mask, other=0.0)
    v = tl.load(at + KV_HEADS * DIM, mask=mask, other=0.0)
    if WIDEN:
        q = q.to(tl.float32)
        k = k.to(tl.float32)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(wanted[None, :], scores, float("-inf"))
    top = tl.max(scores, 1)
    pivot = tl.where(top == float("-inf"), 0.0, top)
    weights = tl.exp2(scores - pivot[:, None])
    narrow = weights.to(v.dtype)
    if WIDEN:
        narrow = narrow.to(tl.float32)
        v = v.to(tl.float32)
    sums = tl.dot(narrow, v, input_precision="ieee")
    part = query.to(tl.int64) * splits + split
    tl.store(stats_ptr + part, top, mask=given)
    tl.store(stats_ptr + KV_HEADS * GROUP * splits + part, tl.sum(weights, 1), mask=given)
    at = sums_ptr + part[:, None] * DIM + d[None, :]
    tl.store(at, sums, mask=given[:, None] & (d[None, :] < DIM))


def attend_window(
    q: torch.Tensor,
    ring: torch.Tensor,
    position: torch.Tensor,
    window: int,
    out: tuple[torch.Tensor, torch.Tensor],
    *,
    row: torch.Tensor | None,
) -> Splits:
    """Launch over splits x K/V heads; see the package for the contract."""
    (_, kv_heads, group, dim), splits = q.shape, out[0].shape[1]
    with on_device_of(q):
        _attend_window[(splits, kv_heads)](
            q,
            ring,
            position,
            position if row is None else row,
            *out,
            window,
            len(ring),
            splits,
            dim**-0.5 * LOG2_E,
            ROW=row is not None,
            KV_HEADS=kv_heads,
            GROUP=group,
            DIM=dim,
            SPLIT=WINDOW_SPLIT,
            BLOCK_M=max(16, triton.next_power_of_2(group)),
            BLOCK_D=max(16, triton.next_power_of_2(dim)),
            WIDEN=INTERPRETED,
            num_warps=4,
            **overlapped(q),
        )
    return Splits(sums=out[0], stats=out[1], positions=None, cells=WINDOW_SPLIT)
