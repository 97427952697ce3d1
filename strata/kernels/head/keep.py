"""Which tokens top-k, top-p and min-p leave: the rule, in plain torch.

Shapes: R rows, V vocabulary. The three apply in turn, each to what the one before left:

- top-k keeps every token whose logit is at least the k-th largest;
- top-p keeps every token above which less than `top_p` of the probability lies, and the best;
- min-p keeps every token that has at least `min_p` times the best one's probability.

So tokens of equal logits stand or fall together, and no order of tokens is needed. What lies above
a token is summed in whole numbers of 2^-40 of the best one's probability, which gives one sum in
any order; a kernel's may still differ by how its exponential is rounded.
"""

from __future__ import annotations

import torch

UNITS = 2.0**40
"""Units of weight that the best token has; 2^18 tokens of as many fit 63 bits."""


def keep_likely(
    logits: torch.Tensor, scaled: torch.Tensor, *, top_k: int, top_p: float, min_p: float
) -> torch.Tensor:
    """Return which of `logits` [R, V] stay, as flags [R, V].

    `scaled` [R, V] float32 are the logits over the temperature. 0, 1 and 0 cut nothing.
    """
    kept = torch.ones_like(logits, dtype=torch.bool)
    if top_p == 1 and min_p == 0 and top_k == 0:
        return kept
    if 0 < top_k < logits.shape[-1]:
        kept = logits >= logits.topk(top_k, -1).values[:, -1:]
    weights = (scaled - scaled.amax(-1, keepdim=True)).exp()
    if top_p < 1:
        ranked, order = logits.sort(dim=-1, descending=True)
        units = (weights * UNITS).long().masked_fill(~kept, 0).gather(-1, order)
        upto = units.cumsum(-1)
        # Nothing of equal logits lies above any of them: the first one's sum holds for all.
        first = torch.ones_like(kept)
        first[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
        above = (upto - units).masked_fill(~first, 0).cummax(-1).values
        inside = (above.double() < top_p * upto[:, -1:].double()) | (above == 0)
        kept = kept & torch.zeros_like(kept).scatter(-1, order, inside)
    if min_p > 0:
        kept = kept & (weights >= min_p)
    return kept
