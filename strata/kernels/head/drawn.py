"""What the head of a forward gives."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Tokens of R rows and what they were drawn from."""

    tokens: torch.Tensor  # [R], int64
    shares: torch.Tensor  # [R], softmax of the raw logits at the token, float32
    hidden: torch.Tensor  # [R, H], after the final norm, in the model's type
    logits: torch.Tensor | None  # [R, V], float32; None where nobody asked
