"""The choice of one row's experts, as a piece of whatever kernel has the row at hand."""

from __future__ import annotations

import triton
import triton.language as tl


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
    inside = e < experts
    if PROJECT:
        logits = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, hidden, BLOCK_HIDDEN):
            h = start + tl.arange(0, BLOCK_HIDDEN)
            x = tl.load(x_ptr + h, mask=h < hidden, other=0.0).to(tl.float32)
            mask = inside[:, None] & (h < hidden)[None, :]
            w = tl.load(router_ptr + e[:, None] * hidden + h[None, :], mask=mask, other=0.0)
            logits += tl.sum(w.to(tl.float32) * x[None, :], 1)
        logits = logits.to(x_ptr.dtype.element_ty).to(tl.float32)
        logits = tl.where(inside, logits, float("-inf"))
    else:
        logits = tl.load(x_ptr + e, mask=inside, other=float("-inf")).to(tl.float32)
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
    tl.store(ids_ptr + place, e.to(ids_ptr.dtype.element_ty), mask=place >= 0)
    weights = share.to(weights_ptr.dtype.element_ty)
    tl.store(weights_ptr + place, weights, mask=place >= 0)
