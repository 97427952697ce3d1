"""Where rows begin: embeddings with their first norm, and what the drafter makes of them.

Shapes: R rows, H hidden, V vocabulary. Contract here and in `ref`, one launch each on a GPU.
"""

from __future__ import annotations

import torch

from strata.kernels import device
from strata.kernels.embed import ref
from strata.lm.linear import Linear

__all__ = ["embed_rows", "join_rows"]


def embed_rows(
    tokens: torch.Tensor,
    embedding: torch.Tensor,
    gain: torch.Tensor,
    *,
    eps: float,
    residual: torch.Tensor,
    normed: torch.Tensor,
) -> None:
    """Write the embeddings of `tokens` [R] into `residual` [R, H], normed by `gain` into `normed`.

    Tokens are read on the device when the kernel runs.
    """
    if device.has_kernels(embedding):
        from strata.kernels.embed import triton

        return triton.embed_rows(tokens, embedding, gain, eps=eps, residual=residual, normed=normed)
    return ref.embed_rows(tokens, embedding, gain, eps=eps, residual=residual, normed=normed)


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
    counter: torch.Tensor,
) -> None:
    """Write the drafter's input for `tokens` [R] and main-model `hidden` [R, H].

    `gains` norm the embedding, the hidden state and the joined row; `fc` [H, 2H] joins the first
    two. `residual` [R, H] gets the joined rows, `normed` [R, H] their norm; that may be `hidden`
    itself. `counter` [R] int32 is zero before and after.
    """
    if device.has_kernels(embedding):
        from strata.kernels.embed import triton

        triton.join_rows(
            tokens,
            hidden,
            embedding,
            gains,
            fc.weight,
            eps=eps,
            residual=residual,
            normed=normed,
            counter=counter,
        )
    else:
        ref.join_rows(
            tokens, hidden, embedding, gains, fc, eps=eps, residual=residual, normed=normed
        )
