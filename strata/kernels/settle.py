"""The last program of a row adds what all of them found, and norms the sum.

A product whose parts many programs write needs one more step per row: residual plus parts, then
the norm that the next product starts from. Whoever finishes last takes that step, so it costs no
launch. Parts are added in their order, so it makes no difference who that is.
"""

from __future__ import annotations

import triton
import triton.language as tl

UNROLLED = tl.constexpr(32)
"""Parts whose loads are all under way at once; more of them are read so many at a time."""


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
def load_row(at, h, HIDDEN: tl.constexpr):
    """Return the row of HIDDEN values that begins `at` in float32, zeros behind it."""
    return tl.load(at + h, mask=h < HIDDEN, other=0.0).to(tl.float32)


@triton.jit
def norm_row(x, gain, eps, HIDDEN: tl.constexpr):
    """Return the root-mean-square normed float32 row `x`, whose places past HIDDEN are zero."""
    return x * tl.rsqrt(tl.sum(x * x, 0) / HIDDEN + eps) * gain


@triton.jit
def settle_row(
    x,
    gain,
    parts_ptr,
    residual_ptr,
    normed_ptr,
    h,
    eps,
    PARTS: tl.constexpr,
    HIDDEN: tl.constexpr,
):
    """Store `x` plus the row's PARTS parts as its residual, and the norm of that.

    Pointers are the row's. Both are rounded to the model's type.
    """
    inside = h < HIDDEN
    if PARTS <= UNROLLED:
        for part in tl.static_range(PARTS):
            at = parts_ptr + part * HIDDEN + h
            x += tl.load(at, mask=inside, other=0.0, cache_modifier=".cg")
    else:
        for part in range(PARTS):
            at = parts_ptr + part * HIDDEN + h
            x += tl.load(at, mask=inside, other=0.0, cache_modifier=".cg")
    rounded = x.to(residual_ptr.dtype.element_ty)
    tl.store(residual_ptr + h, rounded, mask=inside)
    normed = norm_row(rounded.to(tl.float32), gain, eps, HIDDEN)
    tl.store(normed_ptr + h, normed.to(normed_ptr.dtype.element_ty), mask=inside)
