"""What each method would choose at a depth that it was not shown, and what that costs."""

import numpy as np
import pandas as pd
import pytest

from strata.models.baselines import by_forest, by_interpolation, by_nearest, same_setting
from strata.models.choice import left_out_choices, summarise_choices
from strata.models.evaluate import configurations, silence
from strata.models.frame import levelled
from strata.models.simulate import Design, study

DESIGN = Design(tiers_cells=(1_024, 2_048, 4_096), rings_cells=(256, 1_024, 8_192))


def priced_round(tier: int, mode: str, ring: int) -> float:
    return 2e-3 + 5e-4 * (mode == "on") + 1e-7 * tier + 4e-7 * max(0, tier + 64 - ring)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return study(3, DESIGN, priced_round)


def test_the_model_chooses_the_best_ring_of_a_depth_it_was_not_shown(frame: pd.DataFrame) -> None:
    choices = left_out_choices(frame, 1_024)
    assert set(choices["depth_cells"]) == {2_048}
    table = summarise_choices(choices).set_index("policy")
    assert table.loc["cost model", "mean_pct"] == pytest.approx(0, abs=0.5)
    assert table.loc["fixed 256", "mean_pct"] > table.loc["fixed 1024", "mean_pct"] > 5
    for policy in ("linear interpolation", "nearest neighbour", "random forest", "depth", "adapt"):
        assert table.loc[policy, "entries"] + table.loc[policy, "not_measured"] == 2
    assert (table["worst_pct"] >= table["mean_pct"]).all()


def test_a_ring_that_did_not_fit_is_not_measured(frame: pd.DataFrame) -> None:
    gone = (frame["tier_cells"] == 2_048) & (frame["ring_cells"] == 8_192) & (frame["mode"] == "on")
    table = summarise_choices(left_out_choices(frame[~gone], 1_024)).set_index("policy")
    assert table.loc["fixed 8192", "not_measured"] == 1
    assert table.loc["fixed 8192", "entries"] == 1


def test_without_an_interior_depth_there_is_nothing_to_choose() -> None:
    frame = study(0, Design(tiers_cells=(512, 1_024), rings_cells=(512, 1_024)))
    assert summarise_choices(left_out_choices(frame, 1_024)).empty


def test_beyond_the_measured_depths_the_model_is_silent(frame: pd.DataFrame) -> None:
    found = silence(frame)
    assert found.silent == found.asked == 2 * 2 * 3
    assert found.silent_depths == found.depths == 2


def test_baselines_stay_within_their_setting(frame: pd.DataFrame) -> None:
    known = configurations(frame)
    slow = known.assign(vram_budget_bytes=1 << 20, round_s=known["round_s"] * 10)
    both = pd.concat([known, slow], ignore_index=True)
    asked = known[known["depth_cells"] == 2_048]
    others = both[both["depth_cells"] != 2_048]
    for method in (by_interpolation, by_nearest):
        found = method(others, asked, "depth_cells")
        assert (found < 2 * asked["round_s"].max()).all()
    assert len(same_setting(both, known.iloc[0])) == len(known) / 2


def test_the_forest_knows_what_it_was_shown(frame: pd.DataFrame) -> None:
    known = configurations(frame)
    found = by_forest(known, known, "depth_cells")
    assert np.abs(found / known["round_s"] - 1).mean() < 0.1


def test_levelling_takes_the_drift_between_pairs_out() -> None:
    quiet = Design(
        tiers_cells=(1_024,), rings_cells=(256, 1_024, 8_192), passage_sd=0.0, run_sd=0.0
    )
    frame = study(0, quiet, priced_round)
    drift = frame["pair_id"].map({pair: 1 + 0.2 * i for i, pair in enumerate(frame["pair_id"])})
    moved = frame.assign(rounds_per_s=frame["rounds_per_s"] * drift, tok_s=frame["tok_s"] * drift)
    found = levelled(moved)
    by_passage = (found["rounds_per_s"] / frame["rounds_per_s"]).groupby(
        [frame["passage"], frame["mode"]]
    )
    assert (by_passage.max() / by_passage.min()).max() == pytest.approx(1)
    pd.testing.assert_frame_equal(levelled(found), found)


def test_levelling_leaves_pairs_without_a_default_as_they_are() -> None:
    frame = study(0, DESIGN, priced_round)
    alone = frame[frame["arm"] == "arm"]
    np.testing.assert_array_equal(levelled(alone)["rounds_per_s"], alone["rounds_per_s"])
