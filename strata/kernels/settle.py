"""The last program of a row adds what all of them found, and norms the sum.

A product whose parts many programs write needs one more step per row: residual plus parts, then
the norm that the next product starts from. Whoever finishes last takes that step, so it costs no
launch. Parts are added in their order, so it makes no difference who that is.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def arrive_last(counter_ptr, expected):
    """Return whether this program is the last of `expected`; the counter is then zero again.

    What every program stored before is visible to the last one afterwards.
    """
    tl.debug_barrier()
    before = tl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")
    last = before == expected - 1
    if last:
        tl.store(counter_ptr, 0)
    tl.debug_barrier()
    return last


@triton.jit
def norm_row(x, h, gain_ptr, eps, HIDDEN: tl.constexpr):
    """Return the root-mean-square normed float32 row `x`, whose places past HIDDEN are zero."""
    gain = tl.load(gain_ptr + h, mask=h < HIDDEN, other=0.0).to(tl.float32)
    return x * tl.rsqrt(tl.sum(x * x, 0) / HIDDEN + eps) * gain


@triton.jit
def settle_row(
    residual_ptr,
    parts_ptr,
    gain_ptr,
    normed_ptr,
    row_from,
    row,
    eps,
    PARTS: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    KEEP: tl.constexpr,
):
    """Return a row's normed sum of residual `row_from` and PARTS parts, stored as `row`.

    Both the sum, which is the next residual where it is to KEEP, and the normed row are rounded to
    the model's type.
    """
    h = tl.arange(0, BLOCK)
    inside = h < HIDDEN
    at = residual_ptr + row_from * HIDDEN + h
    total = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(PARTS):
        at = parts_ptr + (row * PARTS + part) * HIDDEN + h
        total += tl.load(at, mask=inside, other=0.0, cache_modifier=".cg")
    rounded = total.to(residual_ptr.dtype.element_ty)
    if KEEP:
        tl.store(residual_ptr + row * HIDDEN + h, rounded, mask=inside)
    normed = norm_row(rounded.to(tl.float32), h, gain_ptr, eps, HIDDEN)
    normed = normed.to(normed_ptr.dtype.element_ty)
    tl.store(normed_ptr + row * HIDDEN + h, normed, mask=inside)
    return normed
