"""The penalty of tokens that were seen before: the rule, in plain torch.

Shapes: R rows, V vocabulary, W = 8 entries of a window. A token that stands among the last n before
a row's position has its logit divided by the penalty where it is positive and multiplied by it
elsewhere, once however often it was seen (Keskar et al., 2019, "CTRL", section 4.1, as llama.cpp
and transformers have it). Temperature and cuts come behind it, in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

EVERY_TOKEN = 2**31
"""Tokens before a row's position that no sequence has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """What a penalty reads of a sequence, all of it in device memory.

    A row at position p sees what `seen` holds, and those of the window's tokens that stand before
    p: so a draft is history to the rows behind it, and what comes later is nobody's.
    """

    penalty: torch.Tensor  # [1], float32
    last: torch.Tensor  # [1], int64, how many tokens before a row's position count
    seen: torch.Tensor  # [V], int32, where each verified token was last seen, -1 for nowhere
    tokens: torch.Tensor  # [W], int64, the last verified token and the drafts behind it
    positions: torch.Tensor  # [W], int64, where those stand

    def repeated(self, positions: torch.Tensor) -> torch.Tensor:
        """Return which tokens are penalised, as flags [R, V], for rows at `positions` [R]."""
        oldest = (positions[:, None] - self.last).clamp_min(0)
        found = self.seen >= oldest
        near = (self.positions >= oldest) & (self.positions < positions[:, None])  # [R, W]
        hits = torch.zeros(found.shape, dtype=torch.int32, device=found.device)
        hits.index_add_(1, self.tokens, near.int())
        return found | (hits > 0)


def penalise(
    logits: torch.Tensor, repeated: torch.Tensor, penalty: torch.Tensor | float
) -> torch.Tensor:
    """Return `logits` [R, V] in float32, those of `repeated` [R, V] made less likely."""
    punished = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(repeated, punished, logits)
