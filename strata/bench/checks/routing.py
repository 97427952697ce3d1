"""What a router chose, held against a stable sort."""

from __future__ import annotations

import torch

from strata.bench.checks.inputs import Inputs
from strata.kernels import experts


def chose(given: Inputs, logits: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> bool:
    """Return whether `ids` and `weights` are what `logits` choose; equal ones from the lowest."""
    count, normalise = given.config.experts_per_token, given.config.normalise_router
    share = logits.softmax(-1, dtype=torch.float32)
    best = share.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    _, expected = experts.ref.route(logits, count=count, normalise=normalise)
    return torch.equal(ids.cpu().long(), best) and given.near(weights, expected)


def one_value_router(given: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a router [E, H] whose logit of expert e is the value of a row at place [E] e.

    So no order of a sum can change what it chooses.
    """
    c = given.config
    router = torch.zeros(c.experts, c.hidden, dtype=given.dtype)
    places = given.order(max(c.experts, c.hidden))[: c.experts] % c.hidden
    router[torch.arange(c.experts), places] = 1.0
    return router, places
