"""Embedding and the drafter's joined input in plain torch; shapes as in the package."""

from __future__ import annotations

import torch

from strata.lm.layers import rms_norm
from strata.lm.linear import Linear


def embed_rows(
    tokens: torch.Tensor,
    embedding: torch.Tensor,
    gain: torch.Tensor,
    *,
    eps: float,
    residual: torch.Tensor,
    normed: torch.Tensor,
) -> None:
    """Write embeddings and their norm."""
    residual.copy_(embedding.index_select(0, tokens))
    normed.copy_(rms_norm(residual, gain, eps))


def join_rows(
    tokens: torch.Tensor,
    hidden: torch.Tensor,
    embedding: torch.Tensor,
    gains: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    fc: Linear,
    *,
    eps: float,
    residual: torch.Tensor,
    normed: torch.Tensor,
) -> None:
    """Write the joined rows and their norm."""
    first = rms_norm(embedding.index_select(0, tokens), gains[0], eps)
    residual.copy_(fc(torch.cat([first, rms_norm(hidden, gains[1], eps)], -1)))
    normed.copy_(rms_norm(residual, gains[2], eps))
