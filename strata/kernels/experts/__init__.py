"""Routing and the gated expert product: contract and reference in `ref`, Triton on a GPU.

The Triton twins take one launch and two; they break equal router weights by the lower expert,
where the CPU leaves the choice to PyTorch.
"""

from __future__ import annotations

import torch

from strata.kernels import device
from strata.kernels.experts import ref
from strata.kernels.experts.ref import expert_product, grouped_product

__all__ = ["expert_product", "grouped_product", "route", "slot_product"]


def route(
    logits: torch.Tensor, *, count: int, normalise: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids [R, k] and weights [R, k] of each row's experts from router `logits` [R, E].

    Best first; softmax over all experts in float32, then renormalised over the k if asked.
    """
    if device.has_kernels(logits):
        from strata.kernels.experts import triton

        return triton.route(logits, count=count, normalise=normalise)
    return ref.route(logits, count=count, normalise=normalise)


def slot_product(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    pool: torch.Tensor,
    *,
    table: torch.Tensor | None = None,
    host: torch.Tensor | None = None,
    base: int = 0,
) -> torch.Tensor:
    """Return the weighted sum [R, H] over the experts `ids` [R, k] of each row of `x` [R, H].

    Expert n = id + `base` lies in slot `table[n]` of `pool` [S, 3I, H], or in place in `host`
    [N, 3I, H] (pinned on a GPU) where the slot is negative; without a table slot n is expert n.
    The sum runs in router order. An id below zero is padding: nothing is read for it.
    """
    if device.has_kernels(x):
        from strata.kernels.experts import triton

        return triton.slot_product(x, ids, weights, pool, table=table, host=host, base=base)
    return ref.slot_product(x, ids, weights, pool, table=table, host=host, base=base)
