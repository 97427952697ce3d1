"""What each policy chooses: the tables of the session-creation contract, row by row."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_samples import FINGERPRINT, make_entry, make_request, make_table, tables

from strata import __version__
from strata.config import Selection
from strata.errors import BudgetError, UsageError
from strata.policy import (
    POLICIES,
    Declaration,
    choose_ring,
    make_tiers,
    minimum_ring_cells,
    need_cells,
    parse_resident,
)


def test_fixed_takes_the_cap():
    decision = choose_ring(make_request())
    assert (decision.ring_cells, decision.reason) == (49_152, "the cap")
    assert decision.log_line == "KV ring fixed: 49152 (the cap)"


@pytest.mark.parametrize(
    ("prompt", "ring"), [(1_024, 32_768), (40_000, 40_272), (48_880, 49_152), (131_072, 49_152)]
)
def test_depth_grows_to_need_between_floor_and_cap(prompt, ring):
    assert choose_ring(make_request(prompt, policy="depth")).ring_cells == ring


@pytest.mark.parametrize("prompt", [1, 1_024, 32_768, 48_864])
def test_adapt_keeps_the_floor_below_the_cap(prompt):
    decision = choose_ring(make_request(prompt, policy="adapt"))
    assert decision.ring_cells == 32_768
    assert decision.log_line == "KV ring adaptive: 49152 -> 32768"


@pytest.mark.parametrize("prompt", [48_880, 65_536, 131_072])
def test_adapt_takes_the_cap_at_and_above_it(prompt):
    decision = choose_ring(make_request(prompt, policy="adapt"))
    assert decision.ring_cells == 49_152
    assert "->" not in decision.log_line
    assert "49152" in decision.log_line


@pytest.mark.parametrize("policy", ["fixed", "depth", "adapt", "learned"])
@pytest.mark.parametrize("prompt", [1_024, 131_072])
def test_a_cap_below_the_floor_wins(policy, prompt):
    decision = choose_ring(
        make_request(prompt, policy=policy, kv_resident=1_024, table=make_table())
    )
    assert decision.ring_cells == decision.floor_cells == 1_024


def test_the_floor_is_never_below_the_minimum():
    decision = choose_ring(
        make_request(policy="adapt", default_cells=64, minimum_cells=4_096, kv_resident=1 << 20)
    )
    assert decision.ring_cells == decision.floor_cells == 4_096


def test_zero_keeps_the_whole_context_and_consults_no_policy():
    for policy in ("fixed", "depth", "adapt"):
        decision = choose_ring(make_request(policy=policy, kv_resident=0))
        assert decision.ring_cells == decision.pool_cells == decision.need_cells
        assert (decision.policy, decision.warnings) == ("none", ())


def test_zero_warns_where_learned_was_asked_for():
    decision = choose_ring(make_request(policy="learned", kv_resident=0, table=make_table()))
    assert decision.ring_cells == decision.need_cells
    (warning,) = decision.warnings
    assert "--kv-resident 0" in warning
    assert "learned" in warning


def test_a_negative_cap_or_default_is_an_error():
    with pytest.raises(UsageError, match="--kv-resident: -1 is negative"):
        make_request(kv_resident=-1)
    with pytest.raises(UsageError, match="--kv-ring-default: -16 is negative"):
        make_request(default_cells=-16)


def test_a_cap_below_the_minimum_is_raised_with_one_warning():
    decision = choose_ring(make_request(kv_resident=100, minimum_cells=160))
    assert decision.ring_cells == 160
    (warning,) = decision.warnings
    assert warning.startswith("--kv-resident 100 is below the minimum ring of 160 cells")


def test_a_cap_is_cut_to_whole_pages():
    assert choose_ring(make_request(kv_resident=49_160)).ring_cells == 49_152


def test_unset_under_fixed_is_the_whole_context_where_it_fits():
    decision = choose_ring(make_request(kv_resident=None))
    assert decision.ring_cells == decision.need_cells
    fits = {"fits_all_experts_cells": 200_000, "fits_few_experts_cells": 400_000}
    assert choose_ring(make_request(kv_resident=None, **fits)).ring_cells == decision.need_cells


def test_unset_under_fixed_is_the_default_ring_where_the_whole_does_not_fit():
    fits = {"fits_all_experts_cells": 100_000, "fits_few_experts_cells": 400_000}
    decision = choose_ring(make_request(kv_resident=None, **fits))
    assert decision.ring_cells == 32_768
    assert "default ring" in decision.reason


@pytest.mark.parametrize("policy", ["depth", "adapt"])
@pytest.mark.parametrize(("few", "cap"), [(None, 131_344), (60_000, 60_000), (200_000, 131_344)])
def test_unset_under_other_policies_is_what_fits_beside_the_fewest_experts(policy, few, cap):
    request = make_request(
        policy=policy, kv_resident=None, fits_all_experts_cells=0, fits_few_experts_cells=few
    )
    decision = choose_ring(request)
    assert decision.cap_cells == decision.ring_cells == cap


def test_the_pool_is_never_more_than_the_max_context():
    decision = choose_ring(make_request(1_000, policy="fixed"))
    assert decision.ring_cells == 49_152
    assert decision.pool_cells == decision.need_cells == 1_280
    served = choose_ring(make_request(1_000, max_context_cells=8_001))
    assert served.pool_cells == 8_016


def test_a_pool_that_no_budget_holds_is_an_error_that_says_what_does_fit():
    with pytest.raises(BudgetError, match="beside the fewest expert slots 40000 cells do"):
        choose_ring(make_request(fits_few_experts_cells=40_000, fits_all_experts_cells=0))
    with pytest.raises(BudgetError, match=r"leaves 16 cells .* at least 32"):
        choose_ring(make_request(kv_resident=None, policy="adapt", fits_few_experts_cells=16))
    small = make_request(1_000, fits_few_experts_cells=2_000, fits_all_experts_cells=0)
    assert choose_ring(small).pool_cells == 1_280


def test_learned_obeys_the_table_and_says_what_it_expects():
    request = make_request(policy="learned", table=make_table(), table_origin="t.json")
    decision = choose_ring(request)
    assert (decision.ring_cells, decision.tier, decision.table) == (49_152, "128K", "t.json")
    assert decision.gain is not None
    assert decision.gain.lower_ratio == 0.037
    assert decision.warnings == ()
    assert decision.log_line == (
        "KV ring learned: 49152 (tier 128K, drafter on, "
        "expected gain +16.0% [+3.7%, ...], table t.json)"
    )


@pytest.mark.parametrize(
    ("prompt", "mode", "verdict"),
    [(32_768, "on", "worse"), (131_072, "off", "undecided"), (1_024, "on", "equivalent")],
)
def test_learned_keeps_the_default_for_every_other_verdict(prompt, mode, verdict):
    decision = choose_ring(make_request(prompt, policy="learned", table=make_table(), mode=mode))
    assert decision.ring_cells == 32_768
    assert decision.warnings == ()
    assert verdict in decision.log_line
    assert decision.gain is None


@pytest.mark.parametrize(
    ("ring", "fields", "expected", "limit"),
    [(65_536, {}, 49_152, "cap"), (16, {"minimum_cells": 4_096}, 4_096, "minimum")],
)
def test_learned_holds_the_table_between_minimum_and_cap(ring, fields, expected, limit):
    table = make_table(entries=(make_entry(131_072, "on", ring),))
    decision = choose_ring(make_request(policy="learned", table=table, **fields))
    assert decision.ring_cells == expected
    assert decision.gain is None
    assert f"held to the {limit}" in decision.reason


def test_learned_keeps_its_gain_where_only_the_context_is_shorter():
    table = make_table(entries=(make_entry(1_024, "on", 40_000),))
    request = make_request(1_024, policy="learned", table=table, kv_resident=None)
    decision = choose_ring(request)
    assert decision.pool_cells == decision.need_cells
    assert decision.gain is not None


def _warned_default(**fields: object) -> str:
    decision = choose_ring(make_request(**({"policy": "learned", "table": make_table()} | fields)))
    assert decision.ring_cells == 32_768
    assert decision.table is None
    (warning,) = decision.warnings
    return warning


def test_learned_without_a_table_warns_and_keeps_the_default():
    assert "found no table" in _warned_default(table=None, table_origin="here")


def test_learned_outside_the_tiers_warns_and_keeps_the_default():
    assert "need 131344 is outside its tiers (1-2048)" in _warned_default(
        table=make_table(tiers=make_tiers([1_024]), entries=())
    )


def test_learned_without_an_entry_warns_and_keeps_the_default():
    warning = _warned_default(table=make_table(entries=()))
    assert "no entry for tier 128K with the drafter on" in warning


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", "Device B"),
        ("model_hash", "b" * 64),
        ("kv_dtype", "float32"),
        ("page_cells", 32),
        ("select", "2048"),
        ("spec", 3),
        ("mtp_window", 512),
        ("victims", "lrfu"),
        ("vram_budget_bytes", 1 << 30),
        ("context", 8_192),
    ],
)
def test_learned_under_another_condition_warns_with_its_name(field, value):
    session = dataclasses.replace(FINGERPRINT, **{field: value})
    warning = _warned_default(fingerprint=session)
    assert f"does not apply: {field} is " in warning


def test_learned_names_another_engine_and_another_default_ring():
    assert "engine is 9.9" in _warned_default(table=make_table(engine_version="9.9"))
    decision = choose_ring(make_request(policy="learned", table=make_table(), default_cells=16_384))
    assert decision.ring_cells == 16_384
    assert "default_ring is 32768 in the table and 16384 here" in decision.warnings[0]


def test_default_rings_that_hold_the_whole_context_are_one():
    """Under a budget the default handed in is what fits, at most the max context."""
    table = make_table(entries=(make_entry(1_024, "on", 64),))
    request = make_request(1_024, policy="learned", table=table, default_cells=1_296)
    decision = choose_ring(request)
    assert (decision.ring_cells, decision.warnings) == (64, ())


def test_a_build_label_of_the_same_release_does_not_count():
    table = make_table(engine_version=f"{__version__}+1f2e3d4c")
    assert choose_ring(make_request(policy="learned", table=table)).warnings == ()


def test_learned_without_known_conditions_warns():
    assert "not known" in _warned_default(fingerprint=None)


def test_drafter_conditions_do_not_count_while_it_is_off():
    session = dataclasses.replace(FINGERPRINT, spec=0, mtp_window=64)
    decision = choose_ring(
        make_request(policy="learned", table=make_table(), mode="off", fingerprint=session)
    )
    assert decision.warnings == ()


def test_a_declaration_lets_the_named_value_through_and_no_other():
    declared = Declaration(
        field="device", value="Device B", reason="same chip", declared="2026-01-01T00:00:00Z"
    )
    table = make_table(declarations=(declared,))
    session = dataclasses.replace(FINGERPRINT, device="Device B")
    decision = choose_ring(make_request(policy="learned", table=table, fingerprint=session))
    assert (decision.ring_cells, decision.warnings) == (49_152, ())
    other = dataclasses.replace(FINGERPRINT, device="Device C")
    assert "Device C" in _warned_default(table=table, fingerprint=other)


def test_swapping_two_rings_in_the_table_swaps_the_choice():
    first = make_table(entries=(make_entry(1_024, "on", 8_192), make_entry(131_072, "on", 16_384)))
    second = make_table(entries=(make_entry(1_024, "on", 16_384), make_entry(131_072, "on", 8_192)))
    for prompt, rings in ((1_024, (8_192, 16_384)), (131_072, (16_384, 8_192))):
        chosen = tuple(
            choose_ring(make_request(prompt, policy="learned", table=table)).ring_cells
            for table in (first, second)
        )
        assert chosen == rings


def test_need_and_minimum_follow_their_definitions():
    assert need_cells(prompt_cells=48_880, max_new=256, page_cells=16) == 49_152
    assert need_cells(prompt_cells=1, max_new=1, page_cells=16) == 32
    assert minimum_ring_cells(Selection(), need_cells=4_096, page_cells=16) == 32
    selected = Selection.parse("512")
    assert minimum_ring_cells(selected, need_cells=4_096, page_cells=16) == 512 + 32


def test_resident_words():
    assert parse_resident(None) is None
    assert parse_resident(" AUTO ") is None
    assert parse_resident("48K") == 49_152
    assert parse_resident("0") == 0
    for text in ("-1", "", "many", "1.5", "999999999999"):
        with pytest.raises(UsageError, match="--kv-resident"):
            parse_resident(text)


def test_wrong_calls_raise():
    with pytest.raises(ValueError, match="policy must be one of"):
        make_request(policy="greedy")
    with pytest.raises(ValueError, match="at least one cell"):
        make_request(need_cells=0)


@given(
    policy=st.sampled_from(POLICIES),
    page=st.sampled_from([1, 3, 16, 64]),
    prompt=st.integers(1, 200_000),
    more=st.integers(0, 100_000),
    minimum=st.integers(1, 5_000),
    default=st.integers(0, 70_000),
    resident=st.none() | st.integers(0, 200_000),
    mode=st.sampled_from(["off", "on"]),
    table=st.none() | tables(),
)
def test_every_ring_is_whole_pages_between_minimum_and_cap(
    policy, page, prompt, more, minimum, default, resident, mode, table
):
    need = need_cells(prompt_cells=prompt, max_new=256, page_cells=page)
    request = make_request(
        prompt,
        policy=policy,
        page_cells=page,
        max_context_cells=need + more,
        minimum_cells=minimum,
        default_cells=default,
        kv_resident=resident,
        mode=mode,
        table=table,
        fingerprint=table.fingerprint if table else FINGERPRINT,
    )
    decision = choose_ring(request)
    assert decision.ring_cells % page == decision.pool_cells % page == 0
    assert decision.minimum_cells <= decision.ring_cells <= decision.cap_cells
    assert decision.minimum_cells <= decision.floor_cells <= decision.cap_cells
    assert decision.pool_cells == min(decision.ring_cells, -(-(need + more) // page) * page)
    if policy == "adapt" and resident != 0:
        wanted = decision.cap_cells if need >= decision.cap_cells else decision.floor_cells
        assert decision.ring_cells == wanted
    assert len(decision.warnings) <= 2


@given(prompt=st.integers(1, 300_000), cap=st.integers(32, 300_000))
def test_adapt_never_loses_the_floor_below_the_cap(prompt, cap):
    decision = choose_ring(make_request(prompt, policy="adapt", kv_resident=cap))
    assert decision.ring_cells >= min(32_768, cap // 16 * 16)
