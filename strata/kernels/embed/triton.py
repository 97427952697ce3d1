"""Embedding with its norm in one launch; the drafter's joined input in another.

Shapes: R rows, H hidden. A row's bits are a function of the row: nothing else enters.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of
from strata.kernels.overlap import let_next_begin, overlapped, wait_for_previous
from strata.kernels.settle import arrive_last, load_row, norm_row

BLOCK_OUT = 16
"""Joined values that one program computes."""


@triton.jit(do_not_specialize_on_alignment=["tokens_ptr"])
def _embed(
    tokens_ptr,
    embedding_ptr,
    gain_ptr,
    residual_ptr,
    normed_ptr,
    eps,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, BLOCK)
    inside = h < HIDDEN
    let_next_begin(OVERLAP)
    gain = load_row(gain_ptr, h, HIDDEN)
    wait_for_previous(OVERLAP)
    token = tl.load(tokens_ptr + row)
    x = tl.load(embedding_ptr + token * HIDDEN + h, mask=inside, other=0.0)
    tl.store(residual_ptr + row * HIDDEN + h, x, mask=inside)
    normed = norm_row(x.to(tl.float32), gain, eps, HIDDEN).to(normed_ptr.dtype.element_ty)
    tl.store(normed_ptr + row * HIDDEN + h, normed, mask=inside)


@triton.jit(do_not_specialize_on_alignment=["tokens_ptr"])
def _join(
    tokens_ptr,
    hidden_ptr,
    embedding_ptr,
    embedding_gain_ptr,
    hidden_gain_ptr,
    gain_ptr,
    weight_ptr,
    residual_ptr,
    normed_ptr,
    counter_ptr,
    eps,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_HIDDEN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Write BLOCK_OUT joined values of one row; the last program of the row norms it."""
    row = tl.program_id(1).to(tl.int64)
    o = tl.program_id(0) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    kind = residual_ptr.dtype.element_ty
    every = tl.arange(0, BLOCK)
    let_next_begin(OVERLAP)
    gain = load_row(gain_ptr, every, HIDDEN)
    wait_for_previous(OVERLAP)
    e_at = embedding_ptr + tl.load(tokens_ptr + row) * HIDDEN
    x_at = hidden_ptr + row * HIDDEN
    e = load_row(e_at, every, HIDDEN)
    x = load_row(x_at, every, HIDDEN)
    e_scale = tl.rsqrt(tl.sum(e * e, 0) / HIDDEN + eps)
    x_scale = tl.rsqrt(tl.sum(x * x, 0) / HIDDEN + eps)
    total = tl.zeros((BLOCK_OUT,), tl.float32)
    for start in tl.static_range(0, HIDDEN, BLOCK_HIDDEN):
        h = start + tl.arange(0, BLOCK_HIDDEN)
        mask = (o < HIDDEN)[:, None] & (h < HIDDEN)[None, :]
        at = weight_ptr + o[:, None] * (2 * HIDDEN) + h[None, :]
        w_e = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        w_x = tl.load(at + HIDDEN, mask=mask, other=0.0).to(tl.float32)
        e = load_row(e_at, h, HIDDEN) * e_scale * load_row(embedding_gain_ptr, h, HIDDEN)
        x = load_row(x_at, h, HIDDEN) * x_scale * load_row(hidden_gain_ptr, h, HIDDEN)
        both = w_e * e.to(kind).to(tl.float32)[None, :] + w_x * x.to(kind).to(tl.float32)[None, :]
        total += tl.sum(both, 1)
    tl.store(residual_ptr + row * HIDDEN + o, total.to(kind), mask=o < HIDDEN)
    if arrive_last(counter_ptr + row, tl.num_programs(0)):
        joined_at = residual_ptr + row * HIDDEN + every
        joined = tl.load(joined_at, mask=every < HIDDEN, other=0.0, cache_modifier=".cg").to(
            tl.float32
        )
        normed = norm_row(joined, gain, eps, HIDDEN).to(kind)
        tl.store(normed_ptr + row * HIDDEN + every, normed, mask=every < HIDDEN)


def embed_rows(
    tokens: torch.Tensor,
    embedding: torch.Tensor,
    gain: torch.Tensor,
    *,
    eps: float,
    residual: torch.Tensor,
    normed: torch.Tensor,
) -> None:
    """Launch over rows."""
    rows, hidden = residual.shape
    with on_device_of(embedding):
        _embed[(rows,)](
            tokens,
            embedding,
            gain,
            residual,
            normed,
            eps,
            HIDDEN=hidden,
            BLOCK=triton.next_power_of_2(hidden),
            num_warps=4,
            **overlapped(embedding),
        )


def join_rows(
    tokens: torch.Tensor,
    hidden: torch.Tensor,
    embedding: torch.Tensor,
    gains: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    weight: torch.Tensor,
    *,
    eps: float,
    residual: torch.Tensor,
    normed: torch.Tensor,
    counter: torch.Tensor,
) -> None:
    """Launch over blocks of the output x rows."""
    rows, width = residual.shape
    block = triton.next_power_of_2(width)
    with on_device_of(embedding):
        _join[(triton.cdiv(width, BLOCK_OUT), rows)](
            tokens,
            hidden,
            embedding,
            *gains,
            weight,
            residual,
            normed,
            counter,
            eps,
            HIDDEN=width,
            BLOCK=block,
            BLOCK_HIDDEN=min(block, 256),
            BLOCK_OUT=BLOCK_OUT,
            num_warps=4,
            **overlapped(embedding),
        )
