"""The next arm: far ones until the model can be fitted, then the one that promises the most."""

import numpy as np
import pandas as pd
import pytest

from strata.models.acquire import _slots, believed_gains, can_fit, expected_drops, propose
from strata.models.simulate import Design, study

DEFAULT = 1_024
DESIGN = Design(
    tiers_cells=(512, 1_024, 2_048, 4_096, 8_192),
    rings_cells=(256, 512, 1_024, 2_048, 4_096, 8_192),
    default_ring_cells=DEFAULT,
    search_passages=2,
    passage_sd=0.002,
    run_sd=0.002,
)
KEYS = ["tier_cells", "mode", "ring_cells"]


def priced(tier: int, mode: str, ring: int) -> float:
    """Return a round time in which every missed cell is paid for."""
    missed = max(0, tier + DESIGN.max_new // 2 - ring)
    return 2e-3 + 5e-4 * (mode == "on") + 1e-7 * tier + 4e-7 * missed


@pytest.fixture(scope="module")
def trials() -> pd.DataFrame:
    return study(0, DESIGN, priced)


@pytest.fixture(scope="module")
def arms(trials: pd.DataFrame) -> pd.DataFrame:
    """Return every arm of the grid, unmeasured."""
    grid = trials.drop_duplicates(KEYS).sort_values(KEYS, ignore_index=True)
    return grid.assign(default_ring_cells=DEFAULT, gain=np.nan)


def true_gain(arms: pd.DataFrame) -> np.ndarray:
    pools = arms.assign(pool=np.minimum(arms["ring_cells"], arms["context_cells"]))
    return np.array(
        [np.log(priced(a.tier_cells, a.mode, DEFAULT) / priced(a.tier_cells, a.mode, a.pool))
         for a in pools.itertuples()]
    )  # fmt: skip


def tell(arms: pd.DataFrame, row: int) -> pd.DataFrame:
    """Measure an arm: its gain is the true one."""
    gain = arms["gain"].to_numpy(dtype=float, copy=True)
    gain[row] = true_gain(arms)[row]
    return arms.assign(gain=gain)


def seen(trials: pd.DataFrame, arms: pd.DataFrame, measured: np.ndarray) -> pd.DataFrame:
    """Return the trials of the pairs of the measured arms."""
    keys = pd.MultiIndex.from_frame(arms.loc[measured, KEYS])
    arm_runs = trials[(trials["arm"] == "arm") & pd.MultiIndex.from_frame(trials[KEYS]).isin(keys)]
    return trials[trials["pair_id"].isin(arm_runs["pair_id"])]


def run(trials: pd.DataFrame, arms: pd.DataFrame, *, steps: int, seed: int) -> list[int]:
    asked: list[int] = []
    measured = np.zeros(len(arms), dtype=bool)
    for _ in range(steps):
        row = propose(seen(trials, arms, measured), arms, measured, seed=seed)
        assert not measured[row]
        asked.append(row)
        measured[row] = True
        arms = tell(arms, row)
    return asked


def test_the_first_arms_are_far_apart_and_never_the_default(
    trials: pd.DataFrame, arms: pd.DataFrame
) -> None:
    first = arms.loc[run(trials, arms, steps=4, seed=0)]
    assert DEFAULT not in set(first["ring_cells"])
    assert set(first["mode"]) == {"off", "on"}
    assert first["tier_cells"].max() / first["tier_cells"].min() >= 8
    starts = {run(trials, arms, steps=1, seed=seed)[0] for seed in range(10)}
    assert len(starts) > 3


def test_the_same_trials_and_seed_ask_for_the_same_arm(
    trials: pd.DataFrame, arms: pd.DataFrame
) -> None:
    assert run(trials, arms, steps=9, seed=3) == run(trials, arms, steps=9, seed=3)


def test_it_goes_where_the_gain_is(trials: pd.DataFrame, arms: pd.DataFrame) -> None:
    """Twelve of sixty arms leave next to nothing to be gained anywhere."""
    asked = run(trials, arms, steps=12, seed=1)
    table = arms.assign(true=true_gain(arms))
    best = table.groupby(["tier_cells", "mode"])["true"].max()
    found = table.loc[asked].groupby(["tier_cells", "mode"])["true"].max()
    lost = best - found.reindex(best.index).fillna(0.0).clip(lower=0.0)
    assert best.mean() > 0.1
    assert lost.mean() < 0.01


def test_a_measured_arm_is_believed_and_its_neighbours_with_it(
    trials: pd.DataFrame, arms: pd.DataFrame
) -> None:
    """The model knows nothing of a planted 10 %; measuring one arm moves those beside it."""
    measured = np.zeros(len(arms), dtype=bool)
    corners = arms["tier_cells"].isin([512, 8_192]) & arms["ring_cells"].isin([256, 8_192, 512])
    measured[corners.to_numpy()] = True
    for row in np.flatnonzero(measured):
        arms = tell(arms, int(row))
    known = seen(trials, arms, measured)
    assert can_fit(known, arms)
    before, before_sd = believed_gains(known, arms)
    at = arms.query("tier_cells == 4096 and mode == 'on' and ring_cells == 4096").index[0]
    beside = arms.query("tier_cells == 4096 and mode == 'on' and ring_cells == 2048").index[0]
    far = arms.query("tier_cells == 512 and mode == 'off' and ring_cells == 512").index[0]
    gain = arms["gain"].to_numpy(dtype=float, copy=True)
    gain[at] = before[at] + 0.1
    after, after_sd = believed_gains(known, arms.assign(gain=gain))
    assert after[at] == pytest.approx(gain[at], abs=0.01)
    assert after[beside] > before[beside] + 0.02
    assert after[far] == pytest.approx(before[far], abs=0.01)
    assert after_sd[at] < 0.01 < after_sd[beside]
    assert before_sd[at] > 0.01


def test_the_default_promises_nothing_and_no_promise_is_negative(
    trials: pd.DataFrame, arms: pd.DataFrame
) -> None:
    drops = expected_drops(trials, arms)
    assert (drops >= 0).all()
    assert (drops[arms["ring_cells"] == DEFAULT] == 0).all()
    best = drops[arms["tier_cells"] == 8_192].max()
    assert best > 10 * drops[arms["tier_cells"] == 512].max()


def test_a_beaten_arm_promises_less(trials: pd.DataFrame, arms: pd.DataFrame) -> None:
    at = arms.query("tier_cells == 8192 and mode == 'off' and ring_cells == 4096").index[0]
    rival = arms.query("tier_cells == 8192 and mode == 'off' and ring_cells == 8192").index[0]
    before = expected_drops(trials, arms)[at]
    assert expected_drops(trials, tell(arms, int(rival)))[at] < before / 10


def test_the_first_arms_lie_an_octave_off_the_default(arms: pd.DataFrame) -> None:
    deep = arms[arms["tier_cells"] >= 2_048].reset_index(drop=True)
    measured = np.zeros(len(deep), dtype=bool)
    nothing = pd.DataFrame(columns=[*KEYS, "context_cells"])
    for _ in range(6):
        row = propose(nothing, deep, measured, seed=4)
        assert deep.loc[row, "ring_cells"] in (512, 2_048)
        measured[row] = True
    assert set(deep.loc[measured, "mode"]) == {"off", "on"}
    assert deep.loc[measured, "tier_cells"].nunique() > 1


def test_a_mode_that_was_seen_once_is_enough_where_the_other_shows_the_pools(
    trials: pd.DataFrame, arms: pd.DataFrame
) -> None:
    def rows(tier: int, mode: str, ring: int) -> np.ndarray:
        found = (arms["tier_cells"] == tier) & (arms["mode"] == mode) & (arms["ring_cells"] == ring)
        return found.to_numpy()

    off = rows(8_192, "off", 256) | rows(2_048, "off", 2_048)
    assert not can_fit(seen(trials, arms, off), arms)
    assert can_fit(seen(trials, arms, off | rows(8_192, "on", 256)), arms)


def test_slots_are_shared_out_by_pool_context_and_drafter() -> None:
    def slots(pool: float, context: float, on: bool) -> float:
        return min(100.0, 130 - 5 * pool - 0.5 * context - 8 * on)

    rows = [
        {"mode": mode, "ring_cells": 1e3 * pool, "context_cells": 1e3 * context,
         "expert_slots": slots(pool, context, mode == "on")}
        for mode in ("off", "on") for context in (16, 32, 64) for pool in (2, 4, 8, 12)
    ]  # fmt: skip
    whole = pd.DataFrame(rows)
    few = whole[(whole["ring_cells"] > 4e3) | (whole["mode"] == "off")]
    np.testing.assert_allclose(_slots(few, whole), whole["expert_slots"], atol=1e-6)
    full = whole.assign(expert_slots=100)
    np.testing.assert_array_equal(_slots(full, whole), np.full(len(whole), 100.0))
    assert np.isnan(_slots(whole.assign(expert_slots=np.nan), whole)).all()
