"""What the head of a forward gives."""

from __future__ import annotations

from dataclasses import dataclass

import torch

TILE = 8192
"""Weights that a program holds in registers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Tokens of R rows and what they were drawn from."""

    tokens: torch.Tensor  # [R], int64
    shares: torch.Tensor  # [R], softmax of the raw logits at the token, float32
    hidden: torch.Tensor  # [R, H], after the final norm, in the model's type
    logits: torch.Tensor | None  # [R, V], float32; None where nobody asked


def block_vocab(hidden: int) -> int:
    """Return the vocabulary entries of a block, whose weights a program holds in registers."""
    return max(1, min(TILE // max(1 << (hidden - 1).bit_length(), 16), 32))


def block_count(vocab: int, hidden: int) -> int:
    """Return B, the blocks of the vocabulary; a constant of the model."""
    return -(-vocab // block_vocab(hidden))
