"""The end of a forward in plain torch: final norm, logits, the token drawn from them.

Shapes: R rows, H hidden, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from strata.kernels.head.drawn import Drawn
from strata.kernels.head.keep import keep_likely
from strata.kernels.head.repeat import Repeat, penalise
from strata.noise import gumbel


def draw(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    weight: torch.Tensor,
    *,
    eps: float,
    positions: torch.Tensor | None,
    seed: torch.Tensor | None,
    temperature: torch.Tensor | None,
    cuts: torch.Tensor | None = None,
    repeat: Repeat | None = None,
) -> Drawn:
    """Return the tokens drawn behind rows `x` [R, H]; see the package for the contract."""
    hidden = x if norm is None else F.rms_norm(x, x.shape[-1:], norm, eps)
    logits = F.linear(hidden, weight).float()
    values = logits
    if repeat is not None:
        assert positions is not None
        values = penalise(logits, repeat.repeated(positions), repeat.penalty)
    if seed is not None and temperature is not None and positions is not None:
        noise = gumbel(positions, logits.shape[-1], int(seed) % 2**64)
        penalised, scaled = values, values / temperature
        values = scaled
        if cuts is not None:
            top_k, top_p, min_p = cuts.tolist()
            kept = keep_likely(penalised, scaled, top_k=int(top_k), top_p=top_p, min_p=min_p)
            values = scaled.masked_fill(~kept, -torch.inf)
        values = values + noise
    tokens = values.argmax(-1)
    shares = logits.softmax(-1).gather(-1, tokens[:, None])[:, 0]
    return Drawn(tokens=tokens, shares=shares, hidden=hidden, logits=logits)
