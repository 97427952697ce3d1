"""The package's operations in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from strata.kernels.experts.ref import route


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
    """Norm, multiply, choose."""
    normed.copy_(F.rms_norm(x, x.shape[1:], norm, eps))
    best, shares = route(F.linear(normed, router), count=ids.shape[1], normalise=normalise)
    ids.copy_(best)
    weights.copy_(shares)


def sort_pairs(ids: torch.Tensor, *, order: torch.Tensor, starts: torch.Tensor) -> None:
    """Sort stably and count."""
    flat = ids.flatten()
    order.copy_(flat.argsort(stable=True))
    counts = torch.bincount(flat, minlength=len(starts) - 1)
    starts[0] = 0
    starts[1:] = counts.cumsum(0)


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
    """Take each expert's pairs in one product each way; the sum is rounded once."""
    (rows, hidden), count = normed.shape, weights.shape[1]
    width = experts.shape[1] // 3
    limits = starts.tolist()
    for expert, start, end in zip(experts, limits, limits[1:], strict=False):
        pairs = order[start:end].long()
        gate, up = F.linear(normed[pairs // count], expert[: 2 * width]).chunk(2, -1)
        inner[start:end] = F.silu(gate) * up
        parts[pairs] = inner[start:end] @ expert[2 * width :]
    shares = weights.float()[..., None] * parts.view(rows, count, hidden).float()
    x.copy_(x.float() + shares.sum(1))
