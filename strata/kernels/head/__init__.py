"""Final norm, logits and the token of each row: contract and reference here, Triton on a GPU."""

from __future__ import annotations

from dataclasses import replace

import torch

from strata.kernels import device
from strata.kernels.head import ref
from strata.kernels.head.drawn import Drawn, block_count
from strata.kernels.head.repeat import EVERY_TOKEN, Repeat, penalise
from strata.noise import gumbel

__all__ = ["EVERY_TOKEN", "Drawn", "Repeat", "block_count", "draw", "noise", "penalise"]


def draw(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    weight: torch.Tensor,
    *,
    eps: float,
    positions: torch.Tensor | None = None,
    seed: torch.Tensor | None = None,
    temperature: torch.Tensor | None = None,
    with_logits: bool = False,
    tokens: torch.Tensor | None = None,
    shares: torch.Tensor | None = None,
    parts: torch.Tensor | None = None,
    cuts: torch.Tensor | None = None,
    scores: tuple[torch.Tensor, torch.Tensor] | None = None,
    repeat: Repeat | None = None,
) -> Drawn:
    """Return the tokens behind rows `x` [R, H] of a forward, with their share of the softmax.

    Rows are normed by `norm` [H] (None: they are already), multiplied by the head's `weight`
    [V, H] and rounded to its type. Without a seed the token is the largest logit's, the lowest of
    equals. With `positions` [R], a `seed` [1] int64 (two's complement) and a `temperature` [1]
    float32, all on the device, it is the argmax of logits / temperature plus
    `strata.noise.gumbel`. With `cuts` [3] float64 as well (top-k, top-p, min-p) only the tokens
    count that `keep.keep_likely` leaves. With `repeat`, which needs positions, logits of tokens
    seen before are penalised ahead of all that. Shares are of the raw logits, and NaN where one of
    a row's is NaN or infinite upwards. `tokens` [R] is where the tokens go, if that matters.
    `shares` [R] float32, `parts` [5, R, `block_count`] float32 and, for cuts, `scores` ([R, V] in
    the weight's type and [R, V] float32) are a kernel's buffers where launches are captured.
    """
    if device.has_kernels(x):
        from strata.kernels.head import triton

        return triton.draw(
            x,
            norm,
            weight,
            eps=eps,
            positions=positions,
            seed=seed,
            temperature=temperature,
            with_logits=with_logits,
            tokens=tokens,
            shares=shares,
            parts=parts,
            cuts=cuts,
            scores=scores,
            repeat=repeat,
        )
    drawn = ref.draw(
        x,
        norm,
        weight,
        eps=eps,
        positions=positions,
        seed=seed,
        temperature=temperature,
        cuts=cuts,
        repeat=repeat,
    )
    return drawn if tokens is None else replace(drawn, tokens=tokens.copy_(drawn.tokens))


def noise(positions: torch.Tensor, vocab: int, seed: torch.Tensor) -> torch.Tensor:
    """Return `strata.noise.gumbel` of `positions` [R] under `seed` [1] (int64) as [R, V].

    Both are on the device and read there; one launch on a GPU.
    """
    if device.has_kernels(positions):
        from strata.kernels.head import triton

        return triton.noise(positions, vocab, seed)
    return gumbel(positions, vocab, int(seed) % 2**64)
