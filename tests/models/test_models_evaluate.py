"""Evaluation ranks methods and policies by what they did not see."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from strata.models.bench import named_by_text
from strata.models.decide import Rule
from strata.models.evaluate import (
    configurations,
    coverage,
    left_out_errors,
    of_draws,
    summarise,
)
from strata.models.inference import share_bounds, share_p_value
from strata.models.regret import regret
from strata.models.rivals import compare_rivals
from strata.models.simulate import Design, study

DESIGN = Design(rings_cells=(256, 1_024, 8_192), search_passages=4)


def priced_round(tier: int, mode: str, ring: int) -> float:
    depth = tier + 64
    missed = max(0, depth - min(ring, tier + 144))
    return 2e-3 + 5e-4 * (mode == "on") + 1e-7 * depth + 4e-7 * missed


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return study(3, DESIGN, priced_round)


@pytest.mark.parametrize("axis", ["depth_cells", "pool_cells"])
def test_physics_beats_interpolation_on_planted_physics(frame: pd.DataFrame, axis: str) -> None:
    errors = left_out_errors(frame, axis)  # type: ignore[arg-type]
    table = summarise(errors).set_index("method")
    assert table["configurations"].nunique() == 1
    error = table["mean_abs_error"]
    assert error["cost model"] < error["linear interpolation"] < error["nearest neighbour"]
    assert error["cost model"] < 0.02
    assert table.loc["cost model", "rank_correlation"] > 0.95
    if axis == "depth_cells":
        assert set(errors["depth_cells"]) == {1_024, 2_048}  # interior ones only


def test_interpolation_is_exact_on_a_straight_line() -> None:
    quiet = Design(rings_cells=(256, 1_024), passage_sd=0.0, run_sd=0.0)
    frame = study(0, quiet, lambda tier, mode, ring: 1e-3 + 1e-6 * tier)
    table = summarise(left_out_errors(frame, "depth_cells")).set_index("method")
    assert table.loc["linear interpolation", "mean_abs_error"] == pytest.approx(0, abs=1e-9)


def test_nothing_interior_leaves_nothing_to_judge() -> None:
    frame = study(0, Design(tiers_cells=(512, 1_024), rings_cells=(512, 1_024)))
    assert left_out_errors(frame, "depth_cells").empty
    assert summarise(left_out_errors(frame, "pool_cells")).empty


def test_configurations_average_passages_and_not_runs(frame: pd.DataFrame) -> None:
    table = configurations(frame)
    assert len(table) == 4 * 2 * 3
    row = table[(table["depth_cells"] == 512) & (table["mode"] == "off")]
    row = row[row["ring_cells"] == 256].iloc[0]
    mine = frame[(frame["depth_cells"] == 512) & (frame["mode"] == "off")]
    mine = mine[mine["ring_cells"] == 256]
    logs = np.log(1 / mine["rounds_per_s"]).groupby(mine["passage"]).mean()
    assert row["round_s"] == pytest.approx(np.exp(logs.mean()))


def test_a_ring_that_ran_on_slow_passages_alone_is_not_slow() -> None:
    quiet = Design(
        tiers_cells=(1_024,), rings_cells=(256, 1_024, 8_192), passage_sd=0.0, run_sd=0.0,
        search_passages=4, modes=("off",),
    )  # fmt: skip
    frame = study(0, quiet, priced_round)
    slow = frame["passage"].isin(["1024:0", "1024:1"])
    whole = frame.assign(rounds_per_s=frame["rounds_per_s"] * np.where(slow, 0.8, 1.0))
    half = whole[slow | (whole["arm"] == "default") | (whole["ring_cells"] == 256)]
    np.testing.assert_allclose(configurations(half)["round_s"], configurations(whole)["round_s"])


SMALL = Design(tiers_cells=(512, 2_048), rings_cells=(256, 1_024), search_passages=4)


def test_coverage_draws_a_passage_and_mode_and_counts_documents() -> None:
    for found in coverage(study(5, SMALL, priced_round)):
        assert (found.draws, found.documents) == (2 * 4 * 2, 4)
        assert found.hits >= 11
        assert found.lower <= found.hits / found.draws <= found.upper
        assert found.p_value > 0.01


def test_a_text_with_two_names_is_one_document() -> None:
    frame = study(5, SMALL, priced_round)
    seeds = frame["passage"].str.rpartition(":")[2].replace({"3": "1"})
    told = frame.assign(text=frame["tier_cells"].astype(str) + ":text of " + seeds)
    assert set(named_by_text(told)["passage"].str.rpartition(":")[2]) == {"0", "1", "2"}
    assert set(named_by_text(frame.assign(text=frame["passage"]))["passage"]) == set(
        frame["passage"]
    )
    for found in coverage(told):
        assert (found.draws, found.documents) == (2 * 3 * 2, 3)
    assert (compare_rivals(told, Rule(), 1_024).rivals["documents"] == 3).all()
    assert (compare_rivals(frame, Rule(), 1_024).rivals["documents"] == 4).all()


def test_draws_of_one_document_are_no_independent_draws() -> None:
    """Twenty documents whose eight draws hit together: binomial tests of 160 draws are wrong."""
    rng = np.random.default_rng(0)
    documents = [(rng.random(20) < 0.9).tolist() for _ in range(400)]
    naive = [stats.binomtest(8 * sum(hits), 160, 0.9).pvalue <= 0.05 for hits in documents]
    ours = [of_draws("round_s", 0.9, [[hit] * 8 for hit in hits]) for hits in documents]
    assert np.mean(naive) > 0.4
    assert np.mean([one.p_value <= 0.05 for one in ours]) < 0.1
    assert np.mean([one.lower <= 0.9 <= one.upper for one in ours]) > 0.9


@given(
    shares=st.lists(st.integers(0, 8), min_size=2, max_size=30).map(
        lambda hits: np.array(hits, dtype=float) / 8
    ),
    rate=st.floats(0.05, 0.95),
)
def test_interval_and_p_value_of_shares_agree(shares: np.ndarray, rate: float) -> None:
    tries = 8 * len(shares)
    p_value = share_p_value(shares, tries, rate)
    assert 0 <= p_value <= 1
    for level in (0.2, 0.05):
        if abs(p_value - level) > 1e-6:
            low, high = share_bounds(shares, tries, level / 2)
            assert (p_value < level) == (not low <= rate <= high)


def test_regret_tells_good_policies_from_bad_ones(frame: pd.DataFrame) -> None:
    table = regret(frame, Rule(), 1_024, halvings=4).set_index("policy")
    assert table.loc["fixed 8192", "mean_pct"] == pytest.approx(0, abs=1)
    assert table.loc["fixed 256", "mean_pct"] > table.loc["fixed 1024", "mean_pct"] > 5
    assert table.loc["cost model", "mean_pct"] < 1
    for policy in ("learned", "depth", "adapt", "need", "fit"):
        assert policy in table.index
    assert (table["worst_pct"] >= table["mean_pct"]).all()


def test_a_ring_that_was_not_measured_has_no_regret() -> None:
    design = Design(tiers_cells=(4_096,), rings_cells=(256, 1_024, 2_048), search_passages=4)
    frame = study(3, design, priced_round)
    rings = {256: 256, 1_024: 1_024, 2_048: 3_008}
    frame["ring_cells"] = frame["ring_cells"].map(rings)
    table = regret(frame, Rule(), 1_024, halvings=2).set_index("policy")
    assert table.loc["depth", "not_measured"] == 0  # the cap, which was measured
    early = frame.assign(depth_cells=2_048)
    table = regret(early, Rule(), 1_024, halvings=2).set_index("policy")
    assert table.loc["depth", "not_measured"] == 2  # 2,192 cells, which was not
    assert np.isnan(table.loc["depth", "mean_pct"])


def test_trials_without_a_default_ring_beside_them_have_no_regret(frame: pd.DataFrame) -> None:
    alone = frame[frame["arm"] == "arm"]
    assert (regret(alone, Rule(), 1_024, halvings=1)["entries"] == 0).all()
