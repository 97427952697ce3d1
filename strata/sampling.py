"""Draw tokens so that the drafter cannot change what is drawn.

Gumbel-max with noise keyed by (seed, position): a token is the argmax of processed logits plus
noise. The drafter adds the same noise to its own logits, and a draft is accepted where it equals
the target's token, so the output at a seed is a function of the target alone (Daliri et al., 2024,
"Coupling without communication and drafter-invariant speculative decoding").
"""

from __future__ import annotations

import torch

from strata.config import SamplingParams
from strata.kernels.head.keep import keep_likely
from strata.noise import gumbel

GREEDY_BELOW = 1e-5
"""A temperature under this is greedy: the quotient of a logit would leave float32."""


class Sampler:
    """Pick tokens by `params`; temperature 0 is greedy and draws no noise."""

    def __init__(self, params: SamplingParams) -> None:
        params.check()
        self.params = params

    @property
    def greedy(self) -> bool:
        """Return whether the largest logit is taken, without noise."""
        return self.params.temperature < GREEDY_BELOW

    def draws_like(self, other: Sampler) -> bool:
        """Return whether both draw the same tokens; where they end does not matter."""
        if self.greedy and other.greedy:
            return True
        drawing = ("temperature", "top_k", "top_p", "min_p", "seed")
        return all(getattr(self.params, name) == getattr(other.params, name) for name in drawing)

    def pick(self, logits: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the ids [R] drawn from `logits` [R, V] for the tokens at `positions` [R]."""
        return self.scores(logits, positions).argmax(-1)

    def scores(self, logits: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return what `pick` takes the largest of [R, V]: the logits, or processed with noise."""
        if self.greedy:
            return logits
        return self.process(logits) + gumbel(positions, logits.shape[-1], self.params.seed)

    def pick_draft(self, logits: torch.Tensor, position: int) -> torch.Tensor:
        """Return the id [1] drawn from a drafter's `logits` [1, V] for the token at `position`."""
        return self.pick(logits, torch.tensor([position], device=logits.device))

    def process(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits divided by the temperature, cut by top-k, top-p and min-p in turn.

        `strata.kernels.head.keep` says which tokens stay; those of equal logits do so together.
        """
        p = self.params
        scaled = logits / p.temperature
        kept = keep_likely(logits, scaled, top_k=p.top_k, top_p=p.top_p, min_p=p.min_p)
        return scaled.masked_fill(~kept, -torch.inf)
