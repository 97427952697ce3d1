"""Routing and the gated expert product: contract and reference in `ref`, Triton on a GPU.

The Triton twins take one launch each; they break equal router weights by the lower expert,
where the CPU leaves the choice to PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strata.kernels import device
from strata.kernels.experts import ref
from strata.kernels.experts.ref import expert_product, grouped_product
from strata.kernels.wide import is_wide
from strata.lm.layers import rms_norm

__all__ = ["Settled", "expert_product", "grouped_product", "part_shape", "route", "slot_product"]

MAX_CHUNKS = 32
"""Parts that an expert's width is cut into at most: as many programs share one expert's bytes."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What a product is added to and normed by where a captured round goes on with its norm."""

    residual: torch.Tensor  # [R, H], the sum is written back
    gain: torch.Tensor  # [H]
    eps: float
    normed: torch.Tensor  # [R, H], the output
    parts: torch.Tensor  # `part_shape`, float32 scratch
    counter: torch.Tensor  # `wide.counter_shape`, int32, zero before and after


def slot_product(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    pool: torch.Tensor,
    *,
    table: torch.Tensor | None = None,
    host: torch.Tensor | None = None,
    base: int = 0,
    settled: Settled | None = None,
) -> torch.Tensor:
    """Return the weighted sum [R, H] over the experts `ids` [R, k] of each row of `x` [R, H].

    Expert n = id + `base` lies in slot `table[n]` of `pool` [S, 3I, H], or in place in `host`
    [N, 3I, H] (pinned on a GPU) where the slot is negative; without a table slot n is expert n.
    The sum runs in router order. An id below zero is padding: nothing is read for it. With
    `settled` the sum goes into the residual, and its norm is what is returned; its `normed` may be
    `x` itself, and no id is padding.
    """
    if device.has_kernels(x):
        from strata.kernels.experts import triton, wide

        launch = wide.slot_product if is_wide(x.shape[1]) else triton.slot_product
        if settled is None:
            return launch(x, ids, weights, pool, table=table, host=host, base=base)
        return launch(
            x,
            ids,
            weights,
            pool,
            table=table,
            host=host,
            base=base,
            out=settled.normed,
            parts=settled.parts,
            counter=settled.counter,
            residual=settled.residual,
            gain=settled.gain,
            eps=settled.eps,
        )
    product = ref.slot_product(x, ids, weights, pool, table=table, host=host, base=base)
    if settled is None:
        return product
    settled.residual.add_(product)
    return settled.normed.copy_(rms_norm(settled.residual, settled.gain, settled.eps))


def part_shape(rows: int, count: int, hidden: int, width: int) -> tuple[int, ...]:
    """Return the shape of the float32 scratch of rows with `count` experts of `width` each."""
    if is_wide(hidden):
        return (rows, count, hidden + width)
    return (rows, count, part_count(width), hidden)


def part_count(width: int) -> int:
    """Return the parts that an expert of `width` is summed from; a constant of the model."""
    return -(-width // block_width(width))


def block_width(width: int) -> int:
    """Return the inner values of an expert that one program computes."""
    return max(16, 1 << (-(-width // MAX_CHUNKS) - 1).bit_length())
