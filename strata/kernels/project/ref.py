"""The package's operations in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def norm_rows(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    out: torch.Tensor,
    index: torch.Tensor | None = None,
) -> torch.Tensor:
    """Write normed rows."""
    rows = x[: len(out)] if index is None else x[index.long()]
    return out.copy_(F.rms_norm(rows, x.shape[1:], weight, eps))


def write_product(
    a: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, add: bool
) -> torch.Tensor:
    """Write or add a product; the sum is rounded once."""
    product = a.float() @ weight.float().T
    return out.copy_(out.float() + product if add else product)


def write_turns(rates: torch.Tensor, first_position: int, out: torch.Tensor) -> None:
    """Write cosines and sines."""
    position = torch.arange(first_position, first_position + len(out), device=out.device)
    phase = position.float()[:, None] * rates
    out.copy_(torch.stack([phase.cos(), phase.sin()], 1))


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
    """Project all heads and write those wanted."""
    rows, (_, planes, page_cells, dim) = len(x), pages.shape
    normed = F.rms_norm(x, x.shape[1:], norm, eps)
    every = F.linear(normed, weight).view(rows, -1, dim)
    turned = every.shape[1] - planes // 2
    qk = F.rms_norm(every[:, :turned], (dim,), None, eps) * head_norm
    cosine, sine = turns.float()[:, None].unbind(2)
    low, high = qk.float().chunk(2, -1)
    qk = torch.cat([low * cosine - high * sine, high * cosine + low * sine], -1).to(x.dtype)
    every = torch.cat([qk, every[:, turned:]], 1)
    cell = torch.arange(offset, offset + rows, device=x.device)
    for head in heads:
        if head < q.shape[1]:
            q[:, head] = every[:, head]
        else:
            pages[cell // page_cells, head - q.shape[1], cell % page_cells] = every[:, head]
