"""What a trial frame must hold, and how its runs pair up."""

import numpy as np
import pandas as pd
import pytest

from strata.errors import UsageError
from strata.models.frame import COLUMNS, failure_counts, pair_table, passage_means, problems
from strata.models.simulate import Design, planted, study

ONE = Design(tiers_cells=(4_096,), rings_cells=(512, 1_024), passage_sd=0.0, run_sd=0.0)


@pytest.fixture
def frame() -> pd.DataFrame:
    return study(0, ONE, planted(0.03, tier_cells=4_096, mode="on", ring_cells=512))


def test_a_made_up_study_has_no_problem(frame: pd.DataFrame) -> None:
    assert problems(frame) == []


def test_log_ratio_is_arm_over_default(frame: pd.DataFrame) -> None:
    pairs = pair_table(frame)
    assert len(pairs) == 6  # 2 modes x 3 passages
    on = pairs[pairs["mode"] == "on"]
    np.testing.assert_allclose(on["log_ratio"], np.log(1.03))
    np.testing.assert_allclose(pairs[pairs["mode"] == "off"]["log_ratio"], 0, atol=1e-12)
    assert set(pairs["ring_cells"]) == {512}
    assert set(pairs["default_ring_cells"]) == {1_024}


def test_drift_that_is_linear_in_time_cancels(frame: pd.DataFrame) -> None:
    frame["rounds_per_s"] *= np.exp(-0.02 * frame["position"])
    on = pair_table(frame).query("mode == 'on'")
    np.testing.assert_allclose(on["log_ratio"], np.log(1.03))


@pytest.mark.parametrize(
    ("column", "value"), [("token_hash", "another"), ("rounds", 1), ("tokens", 5)]
)
def test_arms_that_differ_in_output_are_wrong_output(
    frame: pd.DataFrame, column: str, value: object
) -> None:
    frame.loc[1, column] = value
    pairs = pair_table(frame)
    hit = pairs[pairs["pair_id"] == frame.loc[1, "pair_id"]].iloc[0]
    assert hit["kind"] == "wrong output"
    assert np.isnan(hit["log_ratio"])
    assert (pairs["kind"] == "wrong output").sum() == 1


def test_a_window_that_follows_the_ring_may_change_rounds_but_not_tokens() -> None:
    frame = study(0, ONE)
    arm = (frame["arm"] == "arm") & (frame["mode"] == "on")
    frame.loc[arm, "mtp_window_cells"] = 128
    frame.loc[arm, "rounds"] += 3
    frame.loc[arm, "tok_s"] *= 0.9
    pairs = pair_table(frame)
    assert set(pairs["kind"]) == {"ok"}
    on = pairs[pairs["mode"] == "on"]
    assert set(on["measure"]) == {"tok_s"}
    np.testing.assert_allclose(on["log_ratio"], np.log(0.9))
    frame.loc[arm, "token_hash"] = "another"
    assert set(pair_table(frame).query("mode == 'on'")["kind"]) == {"wrong output"}


def test_windows_past_the_context_are_one_window() -> None:
    frame = study(0, ONE)
    frame.loc[frame["arm"] == "arm", "mtp_window_cells"] = 0  # all
    frame.loc[frame["arm"] == "default", "mtp_window_cells"] = 1 << 20
    assert set(pair_table(frame)["measure"]) == {"rounds_per_s"}


def test_a_failed_run_is_a_kind_and_names_its_arm(frame: pd.DataFrame) -> None:
    numbers = ["rounds", "rounds_per_s", "tok_s", "tokens", "tokens_per_round"]
    frame = frame.astype(dict.fromkeys(numbers, "float"))
    frame.loc[2, "kind"] = "out of memory"
    frame.loc[2, numbers] = np.nan
    frame.loc[2, "token_hash"] = None
    pairs = pair_table(frame)
    hit = pairs[pairs["pair_id"] == frame.loc[2, "pair_id"]].iloc[0]
    assert (hit["kind"], hit["failed_arm"]) == ("out of memory", "arm")
    counts = failure_counts(pairs)
    assert counts["num_pairs"].tolist() == [1]
    assert len(passage_means(pairs)) == 5


def test_half_a_pair_is_incomplete(frame: pd.DataFrame) -> None:
    lost = frame.drop(index=[3])
    assert (pair_table(lost)["kind"] == "incomplete").sum() == 1
    frame.loc[3, "kind"] = "interrupted"
    assert (pair_table(frame)["kind"] == "incomplete").sum() == 1


def test_an_interrupted_run_that_was_repeated_counts_once(frame: pd.DataFrame) -> None:
    again = frame.iloc[[3]].assign(kind="interrupted", rounds_per_s=np.nan)
    assert set(pair_table(pd.concat([frame, again], ignore_index=True))["kind"]) == {"ok"}


def test_repeats_of_a_passage_are_one_sample(frame: pd.DataFrame) -> None:
    again = frame.assign(pair_id=frame["pair_id"] + "-again")
    means = passage_means(pair_table(pd.concat([frame, again], ignore_index=True)))
    assert len(means) == 6
    assert set(means["num_pairs"]) == {2}


def test_a_pair_of_the_default_with_itself_is_no_candidate(frame: pd.DataFrame) -> None:
    frame["ring_cells"] = 1_024
    assert len(pair_table(frame)) == 6
    assert passage_means(pair_table(frame)).empty


@pytest.mark.parametrize("name", COLUMNS)
def test_a_missing_column_is_named(frame: pd.DataFrame, name: str) -> None:
    assert problems(frame.drop(columns=name)) == [f"the trial frame lacks the column {name}"]


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("kind", "slow", "kind is 'slow'"),
        ("arm", "third", "arm is 'third'"),
        ("mode", "maybe", "mode is 'maybe'"),
        ("split", "test", "split is 'test'"),
        ("rounds_per_s", 0.0, "above zero"),
        ("rounds_per_s", float("inf"), "above zero"),
        ("rounds", None, "above zero in a run of kind ok"),
        ("ring_cells", -16, "above zero"),
        ("tok_s", "fast", "not a number"),
        ("position", 0, "twice"),
        ("worker", "another machine", "mixes values of worker"),
        ("tier_cells", 512, "mixes values of tier_cells"),
        ("study", "another", "mix 2 values of study"),
        ("ring_cells", 2_048, "more than one ring"),
    ],
)
def test_each_problem_is_a_sentence(
    frame: pd.DataFrame, column: str, value: object, words: str
) -> None:
    frame[column] = frame[column].astype(object)
    frame.loc[1, column] = value
    assert any(words in sentence for sentence in problems(frame))
    with pytest.raises(UsageError, match=words):
        pair_table(frame)


def test_an_empty_frame_is_a_problem(frame: pd.DataFrame) -> None:
    assert problems(frame.iloc[:0]) == ["the trial frame holds no trial"]
