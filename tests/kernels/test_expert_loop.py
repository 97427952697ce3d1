"""Routing and expert products against one expert and one row at a time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from strata.kernels.experts import expert_product, grouped_product
from strata.kernels.experts.ref import route

WIDTH, HIDDEN = 3, 7


def loop(x: torch.Tensor, experts: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor):
    out = torch.zeros(len(x), HIDDEN, dtype=torch.float64)
    for r, row in enumerate(x.double()):
        for expert, weight in zip(ids[r].tolist(), weights[r].tolist(), strict=True):
            gate, up, down = experts[expert].double().split(WIDTH)
            out[r] += weight * ((F.silu(gate @ row) * (up @ row)) @ down)
    return out


@pytest.mark.parametrize("rows", [1, 2, 8, 63])
@pytest.mark.parametrize(("experts", "count"), [(1, 1), (8, 2), (48, 4)])
def test_products_are_the_loop(rows: int, experts: int, count: int) -> None:
    generator = torch.Generator().manual_seed(rows * 100 + experts)
    blobs = torch.randn(experts, 3 * WIDTH, HIDDEN, generator=generator)
    x = torch.randn(rows, HIDDEN, generator=generator)
    logits = torch.randn(rows, experts, generator=generator)
    ids, weights = route(logits, count=count, normalise=True)
    expected = loop(x, blobs, ids, weights)
    gathered = blobs[ids.flatten()]
    gate_up, down = (part.contiguous() for part in gathered.split(2 * WIDTH, 1))
    one = expert_product(x, gate_up, down, weights)
    torch.testing.assert_close(one.double(), expected, atol=1e-4, rtol=1e-4)
    grouped = grouped_product(x, blobs, ids, weights)
    torch.testing.assert_close(grouped.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("normalise", [True, False])
def test_routing_is_softmax_then_the_best(normalise: bool) -> None:
    logits = torch.randn(9, 6, generator=torch.Generator().manual_seed(1))
    ids, weights = route(logits, count=3, normalise=normalise)
    for r, row in enumerate(logits.softmax(-1)):
        best = sorted(range(6), key=lambda e: -float(row[e]))[:3]
        assert ids[r].tolist() == best
        expected = row[best] / (row[best].sum() if normalise else 1)
        torch.testing.assert_close(weights[r], expected)
