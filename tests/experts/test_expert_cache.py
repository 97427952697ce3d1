"""Pooled experts hand out the bits that resident ones do, and count what moved."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.arena import Arena
from strata.experts.cache import PooledExperts, ResidentExperts

EXPERTS, WIDTH, HIDDEN = 12, 2, 5
HOST = torch.randn(EXPERTS, 3 * WIDTH, HIDDEN, generator=torch.Generator().manual_seed(0))


def make_pool(slots: int) -> PooledExperts:
    return PooledExperts(HOST.clone(), slots, Arena(1 << 14, torch.device("cpu")))


@pytest.mark.parametrize("slots", [1, 2, 5, EXPERTS - 1, EXPERTS])
@settings(max_examples=40, deadline=None)
@given(
    calls=st.lists(
        st.lists(st.integers(0, EXPERTS - 1), min_size=1, max_size=16), min_size=1, max_size=12
    )
)
def test_pooled_is_resident_bit_for_bit(slots, calls):
    pooled, resident = make_pool(slots), ResidentExperts(HOST)
    moved = 0
    original = pooled._from_host

    def count(experts):
        nonlocal moved
        moved += len(experts)
        return original(experts)

    pooled._from_host = count
    lookups = 0
    for call in calls:
        ids = torch.tensor(call)
        before = pooled.counters.overflows
        for mine, theirs in zip(pooled.gather(ids), resident.gather(ids), strict=True):
            assert torch.equal(mine, theirs)
        lookups += len({*call})
        assert pooled.counters.overflows - before == max(0, len({*call}) - slots)
        pooled.residency.check_integrity()
    counters = pooled.counters
    assert counters.lookups == lookups == counters.hits + counters.misses
    assert counters.bytes == counters.misses * HOST[0].nbytes
    assert moved == counters.misses, "experts moved and experts counted"
    if slots == EXPERTS:
        assert counters.misses == len({expert for call in calls for expert in call})


def test_a_slot_is_what_is_read():
    pooled = make_pool(4)
    ids = torch.tensor([3, 8])
    pooled.gather(ids)
    pooled.host[ids] = torch.nan
    assert torch.equal(pooled.gather(ids)[0], HOST[ids, : 2 * WIDTH])
    pooled.pool[int(pooled.residency.table[0, 3])] = torch.nan
    assert pooled.gather(ids)[0][0].isnan().all()
