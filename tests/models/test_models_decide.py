"""The decision rule: what is adopted, what is not, and how often it is wrong."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.models.decide import Entry, Rule, decide, judge
from strata.models.frame import pair_table
from strata.models.inference import holm_steps, mean_bounds, mean_p_value, pairs_needed
from strata.models.simulate import Design, adoption_rate, planted, study

SMALL = Design(tiers_cells=(1_024, 4_096), rings_cells=(512, 1_024), search_passages=3)
QUIET = {"passage_sd": 0.0005, "run_sd": 0.0005}
GAIN = planted(0.08, tier_cells=4_096, mode="on", ring_cells=512)
LOSS = planted(-0.08, tier_cells=4_096, mode="on", ring_cells=512)


def entry_of(entries: list[Entry], tier_cells: int, mode: str) -> Entry:
    (found,) = [e for e in entries if (e.tier_cells, e.mode) == (tier_cells, mode)]
    return found


def quiet(**changes: object) -> Design:
    fields = {"tiers_cells": (1_024, 4_096), "rings_cells": (512, 1_024)} | QUIET | changes
    return Design(**fields)  # type: ignore[arg-type]


def test_a_planted_gain_is_better_and_the_rest_keeps_the_default() -> None:
    entries = decide(study(1, quiet(), GAIN), Rule(margin_ratio=0.02), 1_024)
    hit = entry_of(entries, 4_096, "on")
    assert (hit.verdict, hit.ring_cells) == ("better", 512)
    assert hit.best is not None
    assert hit.best.lower > np.log(1.02)
    rest = [e for e in entries if e is not hit]
    assert {e.verdict for e in rest} == {"equivalent"}
    assert {e.ring_cells for e in rest} == {1_024}


def test_a_planted_loss_is_worse() -> None:
    hit = entry_of(decide(study(1, quiet(), LOSS), Rule(), 1_024), 4_096, "on")
    assert (hit.verdict, hit.ring_cells) == ("worse", 1_024)


def test_swapping_the_measurements_of_two_rings_swaps_the_choice() -> None:
    design = quiet(rings_cells=(512, 1_024, 2_048))
    frame = study(1, design, GAIN)
    assert entry_of(decide(frame, Rule(), 1_024), 4_096, "on").ring_cells == 512
    swapped = frame.assign(ring_cells=frame["ring_cells"].replace({512: 2_048, 2_048: 512}))
    assert entry_of(decide(swapped, Rule(), 1_024), 4_096, "on").ring_cells == 2_048


def test_few_noisy_passages_are_undecided() -> None:
    noisy = quiet(passage_sd=0.05)
    hit = entry_of(decide(study(2, noisy, GAIN), Rule(), 1_024), 4_096, "on")
    assert (hit.verdict, hit.ring_cells) == ("undecided", 1_024)


def test_one_passage_decides_nothing() -> None:
    entries = decide(study(1, quiet(search_passages=1), GAIN), Rule(), 1_024)
    assert {e.verdict for e in entries} == {"undecided"}


@pytest.mark.parametrize(
    ("lost", "note"),
    [
        ("other rings", "no other ring was run"),
        ("other rings' runs", "no run of another ring came through"),
        (
            "fresh runs",
            "ring 512, chosen on search passages, failed on 3 of 3 fresh passages (crash)",
        ),
    ],
)
def test_where_no_ring_was_tested_there_is_no_evidence(lost: str, note: str) -> None:
    frame = study(1, quiet(fresh_passages=3), GAIN)
    mine = (frame["tier_cells"] == 4_096) & (frame["mode"] == "on")
    pairs_of_rings = frame.loc[frame["ring_cells"] == 512, "pair_id"].unique()
    mine &= frame["pair_id"].isin(pairs_of_rings)
    if lost == "fresh runs":
        mine &= frame["split"] == "fresh"
    if lost == "other rings":
        frame.loc[mine, "ring_cells"] = 1_024
    else:
        frame.loc[mine & (frame["arm"] == "arm"), "kind"] = "crash"
    hit = entry_of(decide(frame, Rule(), 1_024), 4_096, "on")
    assert (hit.verdict, hit.ring_cells, hit.best, hit.note) == ("no evidence", 1_024, None, note)
    assert hit.harmless == (lost == "other rings")


def test_one_split_pays_for_every_candidate() -> None:
    pairs = pair_table(study(1, quiet(rings_cells=(512, 1_024, 2_048)), GAIN))
    candidates, note = judge(pairs, Rule())
    assert note == "chosen and tested on the same passages; Holm over 8 tests"
    assert min(c.level for c in candidates) == pytest.approx(0.05 / 8)


def test_two_fresh_passages_are_too_few_to_confirm() -> None:
    pairs = pair_table(study(1, quiet(search_passages=1, fresh_passages=2), GAIN))
    candidates, note = judge(pairs, Rule())
    assert note.startswith("chosen and tested on the same")
    assert {c.passages for c in candidates} == {3}


def test_fresh_passages_confirm_what_search_passages_chose() -> None:
    design = quiet(rings_cells=(512, 1_024, 2_048), fresh_passages=4)
    frame = study(1, design, GAIN)
    entries = decide(frame, Rule(), 1_024)
    hit = entry_of(entries, 4_096, "on")
    assert (hit.verdict, hit.ring_cells) == ("better", 512)
    assert hit.best is not None
    assert hit.best.passages == 4
    assert hit.note == "chosen on search passages, confirmed on fresh ones; Holm over 4 tests"
    fresh = (frame["split"] == "fresh") & (frame["arm"] == "arm")
    slower = frame["rounds_per_s"].where(~fresh, frame["rounds_per_s"] * 0.9)
    refuted = decide(frame.assign(rounds_per_s=slower), Rule(), 1_024)
    assert all(e.ring_cells == 1_024 for e in refuted)


def test_wrong_output_voids_the_entry() -> None:
    frame = study(1, quiet(), GAIN)
    row = frame.index[(frame["mode"] == "on") & (frame["tier_cells"] == 4_096)][0]
    frame.loc[row, "token_hash"] = "another"
    entries = decide(frame, Rule(), 1_024)
    assert entry_of(entries, 4_096, "on").verdict == "invalid"
    assert entry_of(entries, 4_096, "on").ring_cells == 1_024
    assert entry_of(entries, 4_096, "off").verdict == "equivalent"


@pytest.mark.parametrize(("arm", "verdict"), [("arm", "undecided"), ("default", "better")])
def test_a_ring_that_failed_once_is_not_adopted(arm: str, verdict: str) -> None:
    design = quiet(search_passages=6)
    frame = study(1, design, GAIN)
    mine = (frame["mode"] == "on") & (frame["tier_cells"] == 4_096) & (frame["arm"] == arm)
    frame.loc[frame.index[mine][0], "kind"] = "out of memory"
    hit = entry_of(decide(frame, Rule(), 1_024), 4_096, "on")
    assert hit.verdict == verdict
    assert ("out of memory" in hit.note) == (verdict == "undecided")


def test_a_ring_that_loses_at_an_edge_of_its_tier_is_refused() -> None:
    design = quiet(tiers_cells=(4_096,), search_passages=12)
    frame = study(1, design, GAIN)
    deep = frame["passage"].str.split(":").str[1].astype(int) >= 3
    frame["depth_cells"] = np.where(deep, 4_096, 3_200)
    assert entry_of(decide(frame, Rule(), 1_024), 4_096, "on").verdict == "better"
    edge = (frame["depth_cells"] == 3_200) & (frame["arm"] == "arm") & (frame["mode"] == "on")
    frame.loc[edge, "rounds_per_s"] /= 1.1
    hit = entry_of(decide(frame, Rule(), 1_024), 4_096, "on")
    assert (hit.verdict, hit.ring_cells) == ("undecided", 1_024)
    assert "edge of 3,200 cells" in hit.note


def test_a_ring_that_loses_in_the_tier_below_is_refused_at_the_border() -> None:
    def round_s(tier: int, mode: str, ring: int) -> float:
        effect = {1_024: 0.9, 4_096: 1.1}[tier] if ring == 512 else 1.0
        return 0.01 / effect

    hit = entry_of(decide(study(1, quiet(), round_s), Rule(), 1_024), 4_096, "off")
    assert (hit.verdict, hit.ring_cells) == ("undecided", 1_024)
    assert "tier below" in hit.note


def test_whole_contexts_are_one_ring_at_the_border_between_tiers() -> None:
    def round_s(tier: int, mode: str, ring: int) -> float:
        effect = {1_024: 0.9, 4_096: 1.1}[tier] if ring == 8_192 else 1.0
        return 0.01 / effect

    frame = study(1, quiet(rings_cells=(1_024, 8_192)), round_s)
    small = (frame["tier_cells"] == 1_024) & (frame["arm"] == "arm")
    frame.loc[small, "ring_cells"] = 2_048  # holds the whole context up to the border as well
    hit = entry_of(decide(frame, Rule(), 1_024), 4_096, "off")
    assert (hit.verdict, hit.ring_cells) == ("undecided", 1_024)
    frame.loc[small, "ring_cells"] = 512
    assert entry_of(decide(frame, Rule(), 1_024), 4_096, "off").verdict == "better"


def test_pure_noise_seldom_moves_a_ring() -> None:
    """At most 5 % of the studies; 120 of them exceed 9 % by chance in 1 of 40 at the worst."""
    rate = adoption_rate(SMALL, Rule(margin_ratio=0.0), planted_nothing, range(120))
    print(f"adopted under pure noise: {rate:.1%}")
    assert rate <= 0.09


def planted_nothing(tier: int, mode: str, ring: int) -> float:
    del tier, mode, ring
    return 0.004


def test_a_planted_gain_is_found_when_the_sample_suffices() -> None:
    design = Design(
        tiers_cells=(1_024, 4_096), rings_cells=(512, 1_024), search_passages=2, fresh_passages=12
    )
    gain = planted(0.03, tier_cells=4_096, mode="on", ring_cells=512)
    rate = adoption_rate(design, Rule(margin_ratio=0.01), gain, range(30), ring_cells=512)
    print(f"found a planted 3 % gain: {rate:.0%}")
    assert rate >= 0.8


@pytest.mark.parametrize(("loss", "least", "most"), [(-0.03, 0.0, 0.05), (0.0, 0.8, 1.0)])
def test_a_planted_loss_in_one_tier_rejects_the_rule(
    loss: float, least: float, most: float
) -> None:
    """A larger ring gains 5 % at one tier; it is taken where no other tier loses 3 %."""
    design = Design(
        tiers_cells=(1_024, 4_096), rings_cells=(512, 1_024), modes=("on",), search_passages=12
    )
    gain = planted(0.05, tier_cells=4_096, mode="on", ring_cells=512)
    lose = planted(loss, tier_cells=1_024, mode="on", ring_cells=512)

    def round_s(tier: int, mode: str, ring: int) -> float:
        return (lose if tier == 1_024 else gain)(tier, mode, ring)

    rule = Rule(margin_ratio=0.015, no_regression=True)
    rate = adoption_rate(design, rule, round_s, range(30), ring_cells=512)
    print(f"adopted with {loss:+.0%} planted in one tier: {rate:.0%}")
    assert least <= rate <= most


samples = st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=12).map(np.array)


@given(samples, st.floats(-0.2, 0.2), st.floats(0.001, 0.2))
def test_bound_and_p_value_agree(sample: np.ndarray, bound: float, level: float) -> None:
    lower = mean_bounds(sample, level)[0]
    p_value = mean_p_value(sample, bound)
    if abs(lower - bound) > 1e-9:
        assert (lower > bound) == (p_value < level)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.randoms())
def test_holm_lies_between_bonferroni_and_no_correction(p_values: list[float], rng: object) -> None:
    levels, rejected = holm_steps(p_values, 0.05)
    for p_value, level, out in zip(p_values, levels, rejected, strict=True):
        assert out == (p_value <= level)
        assert 0.05 / len(p_values) <= level <= 0.05
        if p_value <= 0.05 / len(p_values):
            assert out
        if p_value > 0.05:
            assert not out
    assert sum(rejected) >= sum(p <= 0.05 / len(p_values) for p in p_values)


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(48)))
def test_the_order_of_the_rows_does_not_matter(order: list[int]) -> None:
    frame = study(1, quiet(), GAIN)
    assert decide(frame.iloc[order], Rule(), 1_024) == decide(frame, Rule(), 1_024)


def test_pairs_needed_are_the_known_ones() -> None:
    assert [pairs_needed(0.02, sd) for sd in (0.015, 0.03, 0.05)] == [6, 16, 41]


def test_a_frame_that_is_not_usable_raises() -> None:
    with pytest.raises(Exception, match="lacks the column"):
        decide(pd.DataFrame(), Rule(), 1_024)
