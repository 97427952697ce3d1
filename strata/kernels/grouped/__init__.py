"""Routed experts of a prompt's rows: route, sort, two grouped products, a sum in router order.

Shapes: n rows, H hidden, E experts, k experts a row, I expert width. A pair is one expert of one
row, number row * k + place. An expert is [3I, H]: the rows of gate and up, then down transposed.
A row's bits depend on nothing but the row. `README.md` has the launches and the bytes moved.
"""

from __future__ import annotations

import torch

from strata.kernels import device
from strata.kernels.grouped import ref

__all__ = ["add_experts", "norm_and_route", "sort_pairs"]


def norm_and_route(
    x: torch.Tensor,
    norm: torch.Tensor,
    router: torch.Tensor,
    eps: float,
    *,
    normalise: bool,
    normed: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
) -> None:
    """Write `x` [n, H] normed to `normed` [n, H], and what the router [E, H] makes of its rows.

    `ids` [n, k] int32, best first, equal ones from the lowest number, and `weights` [n, k]: softmax
    over all experts in float32, renormalised over the k if asked.
    """
    run = ref.norm_and_route
    if device.has_kernels(x):
        from strata.kernels.grouped import triton

        run = triton.norm_and_route
    run(x, norm, router, eps, normalise=normalise, normed=normed, ids=ids, weights=weights)


def sort_pairs(ids: torch.Tensor, *, order: torch.Tensor, starts: torch.Tensor) -> None:
    """Write the pairs of `ids` [n, k] by expert, each expert's ascending, to `order` [n * k].

    Those of expert e are `order`[`starts`[e] : `starts`[e + 1]]; `starts` is [E + 1], both int32.
    """
    if device.has_kernels(ids):
        from strata.kernels.grouped import triton

        triton.sort_pairs(ids, order=order, starts=starts)
    else:
        ref.sort_pairs(ids, order=order, starts=starts)


def add_experts(
    normed: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    *,
    order: torch.Tensor,
    starts: torch.Tensor,
    inner: torch.Tensor,
    parts: torch.Tensor,
    x: torch.Tensor,
) -> None:
    """Add to `x` [n, H] the weighted sum of each row's `experts` [E, 3I, H] applied to `normed`.

    `order` and `starts` are of `sort_pairs`; `inner` [n * k, I] and `parts` [n * k, H] are scratch.
    """
    run = ref.add_experts
    if device.has_kernels(x):
        from strata.kernels.grouped import triton

        run = triton.add_experts
    run(normed, experts, weights, order=order, starts=starts, inner=inner, parts=parts, x=x)
