"""The pieces of a decoder layer that do not touch K/V memory or experts.

Shapes: R rows, H hidden, Q query heads, K K/V heads, D head dimension.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from strata.lm.config import LMConfig
from strata.lm.linear import Linear
from strata.lm.weights import AttentionWeights


class Rotary:
    """Rotary position embedding, half-split pairs (Su et al., 2021)."""

    def __init__(self, config: LMConfig, device: torch.device) -> None:
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        self.inverse = (1.0 / config.rope_theta**exponent).to(device)  # [D / 2]

    def angles(
        self, positions: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosine and signed sine of [R] positions, each [R, 1, D].

        The sine's first half carries the minus of the rotation, so that rotating is one roll.
        """
        phase = positions.to(torch.float32)[:, None, None] * self.inverse
        cos, sin = phase.cos(), phase.sin()
        return torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """Return `x` [R, heads, D] turned by its position's angles."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Return root-mean-square normalised `x` over its last dimension (Zhang, Sennrich, 2019).

    `weight` is [size] or, one set of gains per head, [heads, size].
    """
    size = x.shape[-1:]
    if weight.ndim == 1:
        return F.rms_norm(x, size, weight, eps)
    return F.rms_norm(x, size, None, eps) * weight


def project_qkv(
    x: torch.Tensor,
    w: AttentionWeights,
    eps: float,
    angles: tuple[torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries [R, Q, D] and new cells [R, 2, K, D] of normed input `x` [R, H]."""
    normed, d = w.qk_norm.shape  # Q + K
    k = w.qkv.shape[0] // d - normed
    packed = w.qkv(x).view(-1, normed + k, d)
    qk = rotate(rms_norm(packed[:, :normed], w.qk_norm, eps), *angles)
    cells = torch.cat([qk[:, normed - k :], packed[:, normed:]], 1).view(-1, 2, k, d)
    return qk[:, : normed - k], cells


def dense_mlp(x: torch.Tensor, gate_up: Linear, down: Linear) -> torch.Tensor:
    """Return the gated feed-forward of `x` [R, H]."""
    gate, up = gate_up(x).chunk(2, -1)
    return down(F.silu(gate) * up)
