"""Draw tokens so that the drafter cannot change what is drawn.

Gumbel-max with noise keyed by (seed, position): a token is the argmax of processed logits plus
noise. The drafter adds the same noise to its own logits, and a draft is accepted where it equals
the target's token, so the output at a seed is a function of the target alone (Daliri et al., 2024,
"Coupling without communication and drafter-invariant speculative decoding"). A penalty of tokens
that were seen keeps that: behind a draft it counts the draft as seen, for target and drafter alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from strata.config import SamplingParams
from strata.kernels.head.keep import keep_likely
from strata.kernels.head.repeat import EVERY_TOKEN, penalise
from strata.noise import gumbel

GREEDY_BELOW = 1e-5
"""A temperature under this is greedy: the quotient of a logit would leave float32."""


class Sampler:
    """Pick tokens by `params`; temperature 0 is greedy and draws no noise."""

    def __init__(self, params: SamplingParams) -> None:
        params.check()
        whole = ("max_new", "top_k", "seed", "repeat_last_n")
        real = ("temperature", "top_p", "min_p", "repeat_penalty")
        plain: dict[str, Any] = {name: int(getattr(params, name)) for name in whole}
        plain |= {name: float(getattr(params, name)) for name in real}
        self.params = replace(params, **plain)

    @property
    def greedy(self) -> bool:
        """Return whether the largest logit is taken, without noise."""
        return self.params.temperature < GREEDY_BELOW

    @property
    def repeat(self) -> tuple[float, int] | None:
        """Return the penalty and how many tokens it looks back on, None where it changes nothing.

        The penalty is as float32 has it, which is what logits are divided by.
        """
        p = self.params
        if p.repeat_penalty == 1 or p.repeat_last_n == 0:
            return None
        last = EVERY_TOKEN if p.repeat_last_n < 0 else min(p.repeat_last_n, EVERY_TOKEN)
        return p.repeat_penalty, last

    def draws_like(self, other: Sampler) -> bool:
        """Return whether both draw the same tokens; where they end does not matter."""
        if self.repeat != other.repeat:
            return False
        if self.greedy and other.greedy:
            return True
        drawing = ("temperature", "top_k", "top_p", "min_p", "seed")
        return all(getattr(self.params, name) == getattr(other.params, name) for name in drawing)

    def pick(
        self, logits: torch.Tensor, positions: torch.Tensor, known: Sequence[int] = ()
    ) -> torch.Tensor:
        """Return the ids [R] drawn from `logits` [R, V] for the tokens at `positions` [R]."""
        return self.scores(logits, positions, known).argmax(-1)

    def scores(
        self, logits: torch.Tensor, positions: torch.Tensor, known: Sequence[int] = ()
    ) -> torch.Tensor:
        """Return what `pick` takes the largest of [R, V]: the logits, or processed with noise.

        `known` is the sequence from position 0 on; a penalty reads what lies before a row's own.
        """
        logits = self.penalised(logits, positions, known)
        if self.greedy:
            return logits
        return self.process(logits) + gumbel(positions, logits.shape[-1], self.params.seed)

    def penalised(
        self, logits: torch.Tensor, positions: torch.Tensor, known: Sequence[int]
    ) -> torch.Tensor:
        """Return `logits` [R, V], those of tokens seen before `positions` [R] less likely."""
        if self.repeat is None:
            return logits
        penalty, last = self.repeat
        repeated = torch.zeros_like(logits, dtype=torch.bool)
        for row, position in zip(repeated, positions.tolist(), strict=True):
            seen = known[max(0, position - last) : position]
            row[torch.tensor(seen, dtype=torch.long, device=row.device)] = True
        by = torch.tensor(penalty, dtype=torch.float32, device=logits.device)
        return penalise(logits, repeated, by)

    def process(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits divided by the temperature, cut by top-k, top-p and min-p in turn.

        `strata.kernels.head.keep` says which tokens stay; those of equal logits do so together.
        """
        p = self.params
        scaled = logits / p.temperature
        kept = keep_likely(logits, scaled, top_k=p.top_k, top_p=p.top_p, min_p=p.min_p)
        return scaled.masked_fill(~kept, -torch.inf)
