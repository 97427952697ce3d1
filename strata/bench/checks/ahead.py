"""Checks of what is fetched before it is asked for."""

from __future__ import annotations

import torch

from strata.bench.checks.inputs import ROWS, Inputs, same_bits
from strata.bench.checks.routing import one_value_router
from strata.kernels import prefetch, resolve
from strata.kernels.prefetch import Pending
from strata.kernels.resolve import Admitted, ResolveState
from strata.lm.linear import Linear

LAYERS, PAGES, SLOTS, ASKED, FETCHED, TAIL = 2, 64, 24, 10, 4, 2


def check_prefetch(given: Inputs) -> bool:
    """Compare tables, counts and pools of rounds that fetch ahead, and the experts of a router."""
    return _rounds_agree(given) and _experts_agree(given)


def _rounds_agree(given: Inputs) -> bool:
    """Return whether windows that drift leave the same behind; scores are whole numbers."""
    cpu = torch.device("cpu")
    mine, other = (
        ResolveState.empty(LAYERS, PAGES, SLOTS, "clock", where) for where in (given.device, cpu)
    )
    out, expected = (Admitted.empty(1, ROWS * ASKED, where) for where in (given.device, cpu))
    coming, awaited = (Pending.empty(LAYERS, FETCHED, where) for where in (given.device, cpu))
    wanted = torch.zeros(LAYERS, 2 * FETCHED, dtype=torch.int32)
    got = given.put(wanted)
    host, pool = given.normal(LAYERS * PAGES, 64), given.normal(LAYERS * SLOTS, 64)
    pinned, there = given.pin(host), given.put(pool)
    own = torch.tensor([PAGES - 3])
    for step in range(6):
        for layer in range(LAYERS):
            window = 1 + 2 * step + given.order(40)
            rows = torch.stack([window[given.order(40)[:ASKED]] for _ in range(ROWS)]).int()
            resolve.resolve(mine, given.put(rows), out, layer=layer, keep_from=given.put(own))
            resolve.ref.resolve(other, rows, expected, layer=layer, keep_from=own)
        scores, at = given.whole(9, LAYERS, PAGES).float(), given.put(own)
        prefetch.forecast_pages(given.put(scores), at, mine.table, got, tail=TAIL)
        prefetch.reserve(mine, got, coming, own=at, tail=TAIL)
        prefetch.fetch(pinned, there, coming)
        prefetch.publish(mine, coming)
        prefetch.ref.forecast_pages(scores, own, other.table, wanted, tail=TAIL)
        prefetch.ref.reserve(other, wanted, awaited, base=0, own=own, tail=TAIL)
        prefetch.ref.fetch(host, pool, awaited)
        prefetch.ref.publish(other, awaited)
        pairs = (
            (got, wanted),
            (mine.table, other.table),
            (mine.owner, other.owner),
            (coming.slots, awaited.slots),
            (coming.counters, awaited.counters),
        )
        if not (all(torch.equal(a.cpu(), b) for a, b in pairs) and same_bits(there, pool)):
            return False
    return True


def _experts_agree(given: Inputs) -> bool:
    c = given.config
    router, places = one_value_router(given)
    x = given.normal(ROWS, c.hidden)
    x[:, places] = torch.stack([given.order(c.experts) for _ in range(ROWS)]).to(given.dtype)
    ids = torch.zeros(ROWS, c.experts_per_token, dtype=torch.int32)
    got = given.put(ids)
    weights = given.put(torch.zeros(ROWS, c.experts_per_token, dtype=given.dtype))
    prefetch.forecast_experts(given.put(x), Linear(given.put(router)), got, weights)
    prefetch.ref.forecast_experts(x, Linear(router), ids)
    return torch.equal(got.cpu(), ids)
