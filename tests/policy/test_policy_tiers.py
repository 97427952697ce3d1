"""Tiers partition the needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.policy import make_tiers, tier_of


@given(
    names=st.lists(st.integers(1, 200_000), min_size=1, max_size=8, unique=True),
    need=st.integers(1, 300_000),
)
def test_every_need_up_to_the_last_edge_has_exactly_one_tier(names, need):
    tiers = make_tiers(names)
    holders = [tier for tier in tiers if tier.contains(need)]
    assert len(holders) == (1 if need <= max(names) + 1_024 else 0)
    assert tier_of(need, tiers) == (holders[0] if holders else None)


def test_a_tier_ends_at_the_next_ones_name():
    tiers = make_tiers([512, 1_024, 2_048, 4_096])
    edges = [(tier.lower_cells, tier.upper_cells) for tier in tiers]
    assert edges == [(0, 1_024), (1_024, 2_048), (2_048, 3_072), (3_072, 5_120)]


def test_an_upper_edge_belongs_to_its_tier():
    tiers = make_tiers([32_768, 1_024])
    assert [(tier.lower_cells, tier.upper_cells) for tier in tiers] == [(0, 2_048), (2_048, 33_792)]
    assert tier_of(2_048, tiers) == tiers[0]
    assert tier_of(2_049, tiers) == tiers[1]
    assert tier_of(33_793, tiers) is None
    assert [str(tier) for tier in tiers] == ["1K", "32K"]
    assert str(make_tiers([512])[0]) == "512"


@pytest.mark.parametrize("names", [[0], [-1], [512, 512]])
def test_names_must_be_positive_and_distinct(names):
    with pytest.raises(ValueError, match="positive and distinct"):
        make_tiers(names)
