"""Noise that depends on a seed and a position alone, whoever asks and in whatever order.

Philox4x32-10 (Salmon et al., SC 2011) in torch integer arithmetic, the generator that Triton and
CUDA also have, so that a kernel can draw the same bits.
"""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(counter: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Return four tensors of 32-bit words (in int64) of a four-word `counter` under `seed`."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(10):
        # The products wrap in int64; only their low and high 32 bits are used.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        high0, high1 = (p0 >> 32) & _MASK, (p1 >> 32) & _MASK
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, p1 & _MASK, high0 ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return [c0, c1, c2, c3]


def gumbel(positions: torch.Tensor, vocab: int, seed: int) -> torch.Tensor:
    """Return standard Gumbel noise [R, vocab] in float32 for `positions` [R].

    Entry v of a row comes from word v mod 4 of the counter (v // 4, position, 0, 0).
    """
    blocks = torch.arange(-(-vocab // 4), device=positions.device)
    counter = [
        blocks.expand(len(positions), -1),
        positions.long()[:, None].expand(-1, len(blocks)),
    ]
    zero = torch.zeros_like(counter[0])
    words = torch.stack(philox([*counter, zero, zero], seed), -1).flatten(1)[:, :vocab]
    uniform = (words.double() + 0.5) * 2.0**-32
    return (-(-uniform.log()).log()).float()
