"""What a round misses is learned from counters and predicted where nothing was counted."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.models.cost_model import RingCostModel
from strata.models.features import NAMES, Features, depth_cells, pool_cells
from strata.models.misses import FallingCurve, PageMisses
from strata.models.simulate import Design, study

CURVE = PageMisses(scale=1.4, growth=0.2, fall=2.2)
LAYERS, PAGE = 6, 16

cells = st.floats(64, 200_000)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(-5, 5)), min_size=1, max_size=20))
def test_a_falling_curve_never_rises(points: list[tuple[float, float]]) -> None:
    x, y = np.array(points).T
    values = FallingCurve.fit(x, y)(np.linspace(-1, 11, 50))
    assert (np.diff(values) <= 1e-9).all()
    assert values.min() >= y.min() - 1e-9
    assert values.max() <= y.max() + 1e-9


@given(cells, cells)
def test_page_misses_never_rise_with_the_pool(read: float, depth: float) -> None:
    pools = np.geomspace(16, 400_000, 60)
    found = CURVE.cells_a_token(
        pool=pools, read=np.full(60, min(read, depth)), depth=np.full(60, depth)
    )
    assert (np.diff(found) <= 1e-9).all()
    assert (found >= 0).all()
    assert found[-1] == pytest.approx(0, abs=1e-6)


@given(cells, cells)
def test_page_misses_never_fall_with_the_depth(read: float, pool: float) -> None:
    depths = np.geomspace(read, 1e6, 60)
    found = CURVE.cells_a_token(pool=np.full(60, pool), read=np.full(60, read), depth=depths)
    assert (np.diff(found) >= -1e-6).all()


def selecting(drafts: int = 1) -> pd.DataFrame:
    """Return a study whose counters follow the curve, at every tier and with either drafter."""
    design = Design(
        tiers_cells=(4_096, 16_384, 65_536), rings_cells=(768, 1_024, 2_048, 4_096, 8_192),
        drafts=drafts,
    )  # fmt: skip
    frame = study(0, design).assign(select="512", kv_lookups=1_000)
    read = np.full(len(frame), 512.0)
    a_token = CURVE.cells_a_token(pool=pool_cells(frame), read=read, depth=depth_cells(frame))
    frame["kv_misses"] = a_token * frame["tokens_per_round"] * frame["rounds"] / PAGE
    return frame


def test_counters_teach_the_curve() -> None:
    found = Features.learn(selecting()).page_misses
    assert found is not None
    for name in ("scale", "growth", "fall"):
        assert getattr(found, name) == pytest.approx(getattr(CURVE, name), rel=0.01)


@pytest.mark.parametrize(("column", "value"), [("tier_cells", 16_384), ("ring_cells", 2_048)])
def test_misses_are_predicted_at_a_depth_or_a_ring_that_was_not_counted(
    column: str, value: int
) -> None:
    frame = selecting(drafts=3)
    out = frame[column] == value
    tokens = frame["tokens_per_round"].to_numpy(dtype=float)
    counted = frame["kv_misses"] * PAGE / frame["rounds"]
    blind = frame.assign(kv_misses=np.nan, kv_hits=np.nan)
    found = Features.learn(frame[~out]).missed_cells(blind[out], tokens[out])
    np.testing.assert_allclose(found, counted[out], rtol=0.02, atol=1)


def test_a_round_that_yields_more_tokens_moves_more_pages() -> None:
    frame = selecting()
    features = Features.learn(frame)
    one, two = (features.missed_cells(frame, np.full(len(frame), t)) for t in (1.0, 2.0))
    np.testing.assert_allclose(two, 2 * one)


def test_selecting_has_a_price_only_where_some_trials_did_not_select() -> None:
    always = selecting()
    both = pd.concat([always, study(9, Design(tiers_cells=(256,)))], ignore_index=True)
    column = NAMES.index("selecting")
    for frame, expected in ((always, {0.0}), (both, {0.0, 1.0})):
        matrix = Features.learn(frame).matrix(frame, np.ones(len(frame)))
        assert set(matrix[:, column]) == expected


def test_dense_reading_misses_what_the_pool_does_not_hold() -> None:
    frame = study(0, Design(rings_cells=(256, 1_024, 8_192))).assign(kv_lookups=1_000)
    outside = np.maximum(depth_cells(frame) - pool_cells(frame), 0)
    frame["kv_misses"] = LAYERS * outside / PAGE * frame["rounds"]
    features = Features.learn(frame)
    assert features.page_misses is None
    assert features.dense_scale == pytest.approx(LAYERS)
    column = features.matrix(frame, np.ones(len(frame)))[:, NAMES.index("missed_cells")]
    np.testing.assert_allclose(column, LAYERS * outside)


def test_without_counters_a_cell_is_as_likely_resident_as_any_other() -> None:
    frame = study(0, Design(tiers_cells=(4_096,), rings_cells=(1_024, 2_080))).assign(select="512")
    found = Features.learn(frame).missed_cells(frame, np.ones(len(frame)))
    share = 1 - pool_cells(frame) / depth_cells(frame)
    np.testing.assert_allclose(found, 512 * share)


@pytest.fixture(scope="module")
def model() -> RingCostModel:
    frame = selecting()
    slots = 288 - pool_cells(frame) / 64
    missed = frame["rounds"] * np.maximum(0, 24 - slots / 10)
    return RingCostModel().fit(frame.assign(expert_slots=slots, expert_misses=missed))


@pytest.mark.parametrize("mode", ["off", "on"])
@pytest.mark.parametrize(
    ("column", "values", "direction"),
    [
        ("ring_cells", [768, 1_024, 2_048, 4_096, 8_192], -1),
        ("expert_slots", [170.0, 200.0, 230.0, 270.0], -1),
        ("depth_cells", [4_096, 8_192, 16_384, 65_536], 1),
    ],
)
def test_a_round_is_monotone_where_physics_says_so(
    model: RingCostModel, mode: str, column: str, values: list[float], direction: int
) -> None:
    """All else equal, and drafts accepted alike: acceptance is the workload's, and has no sign."""
    session = {
        "mode": mode, "spec": int(mode == "on"), "depth_cells": 16_384, "max_new": 128,
        "context_cells": 65_680, "ring_cells": 2_048, "mtp_window_cells": 512, "select": "512",
        "expert_slots": 230.0,
    }  # fmt: skip
    asked = pd.DataFrame([session] * len(values)).assign(**{column: values})
    part = model.round_time_
    tokens = np.full(len(asked), 1.0 + 0.8 * (mode == "on"))
    seconds = part.regression.predict(part.features.matrix(asked, tokens))
    assert (direction * np.diff(seconds) >= -1e-12).all()
    assert direction * (seconds[-1] - seconds[0]) > 0 or column == "expert_slots"
