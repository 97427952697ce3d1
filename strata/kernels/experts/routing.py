"""The choice of one row's experts, as a piece of whatever kernel has the row at hand."""

from __future__ import annotations

import triton
import triton.language as tl

AT_ONCE = tl.constexpr(128)
"""Experts that are compared each with each in registers; of more the best is taken in turn."""


@triton.jit
def choose_experts(
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
    e = tl.arange(0, BLOCK)
    if PROJECT:
        logits = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, hidden, BLOCK_HIDDEN):
            h = start + tl.arange(0, BLOCK_HIDDEN)
            x = tl.load(x_ptr + h, mask=h < hidden, other=0.0).to(tl.float32)
            mask = (e < experts)[:, None] & (h < hidden)[None, :]
            w = tl.load(router_ptr + e[:, None] * hidden + h[None, :], mask=mask, other=0.0)
            logits += tl.sum(w.to(tl.float32) * x[None, :], 1)
        logits = logits.to(x_ptr.dtype.element_ty).to(tl.float32)
    else:
        logits = tl.load(x_ptr + e, mask=e < experts, other=0.0).to(tl.float32)
    rank_experts(logits, e, ids_ptr, weights_ptr, experts, COUNT, NORMALISE, BLOCK)


@triton.jit
def rank_experts(
    logits,
    e,
    ids_ptr,
    weights_ptr,
    experts,
    COUNT: tl.constexpr,
    NORMALISE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the COUNT best of `logits` [BLOCK], numbered `e`, with their weights.

    An expert's place is how many are better. All of them at once is one reduction; one after
    another are two each, and a reduction over warps is what costs here. But the comparisons are
    BLOCK * BLOCK, and more than registers hold where there are many experts.
    """
    inside = e < experts
    logits = tl.where(inside, logits, float("-inf"))
    share = tl.exp(logits - tl.max(logits, 0))
    if not NORMALISE:
        share = share / tl.sum(share, 0)
    share = tl.where(inside, share, -1.0)
    # No comparison finds a place for a NaN. It goes first, so that every place names an expert
    # and the weights tell.
    rank = tl.where(share == share, share, 2.0)
    if BLOCK <= AT_ONCE:
        theirs = rank[None, :]
        mine = rank[:, None]
        better = (theirs > mine) | ((theirs == mine) & (e[None, :] < e[:, None]))
        place = tl.sum(better.to(tl.int32), 1)
    else:
        place = tl.full((BLOCK,), BLOCK, tl.int32)
        left = rank
        for j in range(COUNT):
            best = tl.min(tl.where(left == tl.max(left, 0), e, BLOCK), 0)
            place = tl.where(e == best, j, place)
            left = tl.where(e == best, -2.0, left)
    chosen = inside & (place < COUNT)
    if NORMALISE:
        share = share / tl.sum(tl.where(chosen, share, 0.0), 0)
    tl.store(ids_ptr + place, e.to(ids_ptr.dtype.element_ty), mask=chosen)
    tl.store(weights_ptr + place, share.to(weights_ptr.dtype.element_ty), mask=chosen)
