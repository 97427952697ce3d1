"""The penalty of tokens that were seen before, in kernels; `repeat` has the rule."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def is_repeated(v, seen, tokens_ptr, positions_ptr, position, last, WINDOW: tl.constexpr):
    """Return which of tokens `v`, `seen` at these places, are among the last before `position`."""
    oldest = tl.maximum(position - last, 0)
    repeated = seen >= oldest
    for i in tl.static_range(WINDOW):
        token = tl.load(tokens_ptr + i)
        at = tl.load(positions_ptr + i)
        repeated = repeated | ((v == token) & (at >= oldest) & (at < position))
    return repeated


@triton.jit
def penalised(logit, repeated, penalty, BLOCK: tl.constexpr):
    """Return logits, those that are repeated made less likely."""
    by = penalty + tl.zeros((BLOCK,), tl.float32)
    return tl.where(repeated, tl.where(logit > 0, tl.div_rn(logit, by), logit * by), logit)
