"""Row-wise products and norms of a prompt, written into buffers that are given.

Shapes: n rows, H hidden, Q query heads, K K/V heads, D head dimension, C cells a page, P pages,
I inner size, N outputs. A row's bits depend on nothing but the row.
"""

from __future__ import annotations

import torch

from strata.kernels import device
from strata.kernels.project import ref

__all__ = ["norm_rows", "project_heads", "write_product", "write_turns"]


def norm_rows(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    out: torch.Tensor,
    index: torch.Tensor | None = None,
) -> torch.Tensor:
    """Write the root-mean-square normed rows of `x` [*, H] to `out` [n, H] and return it.

    Row r is row r of `x`, or row `index`[r] ([n], int). The rows of `out` may lie apart.
    """
    if device.has_kernels(x):
        from strata.kernels.project import triton

        return triton.norm_rows(x, weight, eps, out=out, index=index)
    return ref.norm_rows(x, weight, eps, out=out, index=index)


def write_product(
    a: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, add: bool
) -> torch.Tensor:
    """Write `a` [n, I] @ `weight` [N, I].T to `out` [n, N] and return it; `add` adds it there."""
    if device.has_kernels(a):
        from strata.kernels.project import triton

        return triton.write_product(a, weight, out, add=add)
    return ref.write_product(a, weight, out, add=add)


def write_turns(rates: torch.Tensor, first_position: int, out: torch.Tensor) -> None:
    """Write cosine and sine of positions times `rates` [D / 2] to `out` [n, 2, D / 2].

    Row r stands at `first_position` + r.
    """
    if device.has_kernels(out):
        from strata.kernels.project import triton

        triton.write_turns(rates, first_position, out)
    else:
        ref.write_turns(rates, first_position, out)


def project_heads(
    x: torch.Tensor,
    norm: torch.Tensor,
    weight: torch.Tensor,
    head_norm: torch.Tensor,
    turns: torch.Tensor,
    eps: float,
    *,
    q: torch.Tensor,
    pages: torch.Tensor,
    heads: range,
    offset: int,
) -> None:
    """Project the normed rows `x` [n, H] to queries, keys and values.

    `weight` [(Q + 2K) * D, H] holds query heads, then keys, then values; only `heads` of these are
    computed. Queries and keys are normed by `head_norm` [Q + K, D] and turned by `turns` [n, 2,
    D / 2] (half-split pairs). Queries go to `q` [n, Q, D], keys and values to consecutive cells of
    `pages` [P, 2K, C, D], row 0 to cell `offset` of them.
    """
    run = ref.project_heads
    if device.has_kernels(x):
        from strata.kernels.project import triton

        run = triton.project_heads
    run(x, norm, weight, head_norm, turns, eps, q=q, pages=pages, heads=heads, offset=offset)
