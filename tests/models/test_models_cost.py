"""The cost model finds planted prices, knows how wrong it may be, and knows where it knows."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from strata.errors import UsageError
from strata.models.acceptance import Acceptance
from strata.models.conformal import MOST_FOLDS, half_width, passage_folds
from strata.models.cost_model import ASKED, EXPECTED_FAILED_CHECKS, RingCostModel
from strata.models.features import NAMES
from strata.models.latency import RoundTime
from strata.models.physics import RelativeNNLS
from strata.models.simulate import Design, study

PRICES = {"rounds": 2e-3, "drafts": 5e-4, "read_cells": 1e-7, "missed_cells": 4e-7}
DESIGN = Design(rings_cells=(256, 1_024, 8_192))


def priced_round(tier: int, mode: str, ring: int) -> float:
    depth = tier + DESIGN.max_new / 2
    missed = max(0.0, depth - min(ring, tier + DESIGN.max_new + 16))
    return (
        PRICES["rounds"]
        + PRICES["drafts"] * (mode == "on")
        + PRICES["read_cells"] * depth
        + PRICES["missed_cells"] * missed
    )


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return study(0, DESIGN, priced_round)


@pytest.fixture(scope="module")
def model(frame: pd.DataFrame) -> RingCostModel:
    return RingCostModel().fit(frame)


@parametrize_with_checks([RelativeNNLS(), RelativeNNLS(relative=False)])
def test_the_regression_is_a_scikit_learn_estimator(estimator: object, check: object) -> None:
    check(estimator)  # type: ignore[operator]


@pytest.mark.filterwarnings("ignore")
def test_the_cost_model_fails_no_estimator_check_but_those_that_feed_it_arrays() -> None:
    found = check_estimator(
        RingCostModel(), expected_failed_checks=EXPECTED_FAILED_CHECKS, on_skip=None
    )
    by_status = {status: {one["check_name"] for one in found if one["status"] == status}
                 for status in ("passed", "xfail")}  # fmt: skip
    assert by_status["xfail"] == set(EXPECTED_FAILED_CHECKS)
    assert len(by_status["passed"]) > 10


def test_an_array_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="takes a pandas frame of trials, got ndarray"):
        RingCostModel().fit(np.zeros((3, 2)))


def test_planted_prices_are_found() -> None:
    quiet = Design(rings_cells=DESIGN.rings_cells, passage_sd=0.0, run_sd=0.0)
    found = RoundTime.learn(study(0, quiet, priced_round)).prices_s
    assert tuple(found) == NAMES
    for name in NAMES:
        assert found[name] == pytest.approx(PRICES.get(name, 0.0), rel=1e-3, abs=1e-12)


def test_noisy_prices_are_near(model: RingCostModel) -> None:
    found = model.round_time_.prices_s
    assert found["missed_cells"] == pytest.approx(PRICES["missed_cells"], rel=0.1)
    assert all(price >= 0 for price in found.values())


def test_a_ring_past_the_context_changes_nothing(model: RingCostModel, frame: pd.DataFrame) -> None:
    row = frame[(frame["tier_cells"] == 4_096) & (frame["ring_cells"] == 8_192)].iloc[[0]]
    wider = row.assign(ring_cells=1 << 20)
    assert model.predict(row) == model.predict(wider)


def test_more_ring_never_costs_time_where_experts_are_not_at_stake(
    model: RingCostModel, frame: pd.DataFrame
) -> None:
    row = frame[frame["tier_cells"] == 4_096].iloc[[0] * 5]
    rings = row.assign(ring_cells=[256, 512, 1_024, 2_048, 4_096])
    assert (np.diff(model.predict_frame(rings)["round_s"]) <= 0).all()


def test_predictions_need_only_what_can_be_asked(model: RingCostModel, frame: pd.DataFrame) -> None:
    np.testing.assert_array_equal(model.predict(frame[list(ASKED)]), model.predict(frame))


def test_intervals_hold_new_passages(model: RingCostModel) -> None:
    fresh = study(99, DESIGN, priced_round)
    found = model.predict_frame(fresh)
    seconds = 1 / fresh["rounds_per_s"]
    held = (found["round_s_lower"] <= seconds) & (seconds <= found["round_s_upper"])
    assert held.mean() > 0.85
    assert (found["tok_s_lower"] < found["tok_s"]).all()
    assert (found["tok_s"] < found["tok_s_upper"]).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"depth_cells": 100_000}, "depth_cells 100,000 lies outside the measured 512 to 4,096"),
        ({"depth_cells": 100}, "depth_cells 100 lies outside"),
        ({"ring_cells": 16}, "pool_cells 16 lies outside"),
        ({"mode": "on", "spec": 7}, "drafts 7 lies outside"),
    ],
)
def test_outside_of_what_was_measured_there_is_no_evidence(
    model: RingCostModel, frame: pd.DataFrame, change: dict[str, object], words: str
) -> None:
    found = model.predict_frame(frame.iloc[[0]].assign(**change)).iloc[0]
    assert words in found["no_evidence"]
    assert np.isnan(found["tok_s"])
    assert np.isnan(found["round_s_upper"])


def test_a_mode_that_was_not_measured_has_no_evidence(frame: pd.DataFrame) -> None:
    model = RingCostModel().fit(frame[frame["mode"] == "off"])
    found = model.predict_frame(frame[frame["mode"] == "on"])
    assert set(found["no_evidence"]) == {"the drafter was never on in the trials"}
    assert np.isnan(model.predict(frame[frame["mode"] == "on"])).all()


def test_the_model_behaves_like_an_estimator(frame: pd.DataFrame, model: RingCostModel) -> None:
    copy = clone(model)
    assert copy.get_params() == {"confidence": 0.9, "penalty": 1.0}
    with pytest.raises(NotFittedError):
        copy.predict(frame)
    assert copy.set_params(confidence=0.5).fit(frame) is copy
    narrower, wider = copy.half_widths_, model.half_widths_
    assert narrower["tok_s", "on"] < wider["tok_s", "on"]
    assert model.score(frame, frame["tok_s"]) > 0.5


def test_what_cannot_be_fitted_is_said(frame: pd.DataFrame) -> None:
    with pytest.raises(UsageError, match="no trial finished"):
        RingCostModel().fit(frame.assign(kind="crash"))
    with pytest.raises(UsageError, match="confidence is 2"):
        RingCostModel(confidence=2).fit(frame)
    with pytest.raises(UsageError, match="lacks the column"):
        RingCostModel().fit(pd.DataFrame())


def test_one_passage_gives_numbers_without_bounds(frame: pd.DataFrame) -> None:
    one = frame[frame["passage"] == "4096:0"]
    found = RingCostModel().fit(one).predict_frame(one)
    assert np.isfinite(found["round_s"]).all()
    assert np.isinf(found["round_s_upper"]).all()


def test_expert_misses_are_a_falling_curve_of_the_slots_left() -> None:
    def missed(slots: pd.Series) -> pd.Series:
        return 8 * np.exp(-slots / 60)

    def round_s(tier: int, mode: str, ring: int) -> float:
        slots = (design.budget_bytes or 0) - min(ring, tier + 144) * 1_536
        return 1e-3 + 5e-5 * float(missed(pd.Series([min(288, slots // 98_304)])).iloc[0])

    design = Design(
        rings_cells=(256, 1_024, 2_048, 3_072, 8_192), budget_bytes=1 << 23, passage_sd=0.0,
        run_sd=0.0, modes=("off",),
    )  # fmt: skip
    frame = study(0, design, round_s)
    slots = frame["expert_slots"].astype(float)
    frame["expert_misses"] = missed(slots) * frame["rounds"]
    assert slots.nunique() > 5
    part = RoundTime.learn(frame)
    assert part.prices_s["missed_experts"] == pytest.approx(5e-5, rel=0.01)
    np.testing.assert_allclose(part.seconds(frame), 1 / frame["rounds_per_s"], rtol=1e-3)


def acceptance_frame(rates: dict[int, tuple[float, ...]], rounds: int = 200) -> pd.DataFrame:
    rows = [
        {
            "mode": "on", "spec": len(chance), "passage": f"{depth}:{seed}", "depth_cells": depth,
            "max_new": 256, "mtp_window_cells": 1_024,
            "accepted": [round(rounds * one) for one in np.cumprod(chance)],
            "drafted": [rounds] * len(chance),
        }
        for depth, chance in rates.items()
        for seed in range(3)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_acceptance_falls_with_depth_and_place_as_it_was_planted() -> None:
    planted = {1_024: (0.9, 0.8), 8_192: (0.8, 0.6), 65_536: (0.65, 0.4)}
    frame = acceptance_frame(planted)
    tokens = Acceptance.learn(frame, penalty=1e-3).tokens_per_round(frame)
    expected = [1 + a + a * b for a, b in planted.values() for _ in range(3)]
    np.testing.assert_allclose(tokens, expected, rtol=0.05)


def test_acceptance_of_one_draft_from_trials_of_two() -> None:
    frame = acceptance_frame({4_096: (0.75, 0.5)})
    model = Acceptance.learn(frame)
    assert model.tokens_per_round(frame.assign(spec=1))[0] == pytest.approx(1.75, rel=0.01)
    assert np.isnan(model.tokens_per_round(frame.assign(spec=3))).all()
    assert (model.tokens_per_round(frame.assign(mode="off")) == 1).all()


def test_without_a_drafter_a_round_is_a_token(frame: pd.DataFrame) -> None:
    off = frame[frame["mode"] == "off"]
    assert (Acceptance.learn(off).tokens_per_round(off) == 1).all()


def test_half_width_is_the_conformal_quantile() -> None:
    residuals = np.arange(1.0, 20.0)  # 19 passages, one residual each
    names = [str(i) for i in range(19)]
    assert half_width(residuals, names, 0.9) == 18.0  # the 18th of 19: ceil(0.9 x 20)
    assert half_width(-residuals, names, 0.5) == 10.0


def test_half_width_counts_passages_and_not_runs() -> None:
    few = half_width(np.array([0.1, 0.2, 0.3]), ["a", "b", "c"], 0.9)
    many = half_width(np.repeat([0.1, 0.2, 0.3], 50), list(np.repeat(["a", "b", "c"], 50)), 0.9)
    assert few == pytest.approx(many)
    assert few > 0.3
    assert half_width(np.array([0.1, 0.2]), ["a", "a"], 0.9) == np.inf


def test_folds_keep_passages_whole_and_mix_depths() -> None:
    few = passage_folds(["b", "a", "b", "c"])
    assert few.tolist() == [1, 0, 1, 2]
    names = [f"{depth}:{seed}" for depth in (512, 1_024) for seed in range(16)]
    folds = passage_folds([*names, *names])
    assert len(set(folds)) == MOST_FOLDS
    assert (folds[:32] == folds[32:]).all()
    assert all(len({names[i].split(":")[0] for i in np.flatnonzero(folds[:32] == f)}) == 2
               for f in set(folds))  # fmt: skip


def test_half_width_covers_new_passages() -> None:
    rng = np.random.default_rng(0)
    held = [
        abs(rng.normal()) <= half_width(rng.normal(size=15), [str(i) for i in range(15)], 0.9)
        for _ in range(600)
    ]
    assert 0.86 <= np.mean(held) <= 0.97
