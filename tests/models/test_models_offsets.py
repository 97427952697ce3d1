"""What prices leave over is kept where it was measured, by its rings, and fades out."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.models.latency import RoundTime
from strata.models.offsets import REACH_OCTAVES, SHRINK_ROWS, Offset, Offsets
from strata.models.simulate import Design, study


def asked(**changes: object) -> pd.DataFrame:
    session = {"mode": "on", "spec": 3, "depth_cells": 8_192, "select": "512", "ring_cells": 1_024}
    length = max((len(v) for v in changes.values() if isinstance(v, list)), default=1)
    return pd.DataFrame([session] * length).assign(**changes)


def place(
    *, depth: float = 8_192, at: Sequence[float] = (0.0,), logs: Sequence[float] = (0.1,)
) -> Offset:
    return Offset(depth_cells=depth, rows=4, select="512", at=tuple(at), logs=tuple(logs))


def test_an_offset_is_the_shrunk_mean_of_its_place_and_ring() -> None:
    trials = asked(depth_cells=[8_192, 8_192, 8_192, 16_384])
    at = np.log([1e-3, 1e-3, 2e-3, 3e-3])
    found = Offsets.learn(trials, np.array([0.1, 0.3, 0.5, 0.2]), at).places
    mean = 0.9 / (3 + SHRINK_ROWS)
    rings = [(0.4 - 2 * mean) / (2 + SHRINK_ROWS), (0.5 - mean) / (1 + SHRINK_ROWS)]
    assert found[0].logs == pytest.approx([mean + ring for ring in rings])
    assert found[0].at == pytest.approx(at[1:3])
    alone = 0.2 / (1 + SHRINK_ROWS)
    assert found[1].logs == pytest.approx([alone + (0.2 - alone) / (1 + SHRINK_ROWS)])


def test_an_offset_fades_out() -> None:
    offsets = Offsets((place(),))
    depths = [8_192 * 2**step for step in (0, REACH_OCTAVES / 2, REACH_OCTAVES, 1, -1)]
    found = offsets.log(asked(depth_cells=depths), np.zeros(5))
    np.testing.assert_allclose(found, [0.1, 0.05, 0, 0, 0])
    for other in ({"spec": 1}, {"select": "0"}, {"mode": "off"}):
        assert offsets.log(asked(**other), np.zeros(1))[0] == 0


def test_between_its_rings_a_place_is_a_straight_line_and_beyond_them_level() -> None:
    offsets = Offsets((place(at=(1.0, 2.0), logs=(0.1, 0.3)),))
    found = offsets.log(asked(ring_cells=[1_024] * 4), np.array([0.0, 1.0, 1.5, 3.0]))
    np.testing.assert_allclose(found, [0.1, 0.1, 0.2, 0.3])


def test_places_close_together_are_averaged() -> None:
    offsets = Offsets((place(depth=8_000), place()))
    assert offsets.log(asked(), np.zeros(1))[0] == pytest.approx(0.1)


@given(
    residuals=st.lists(st.floats(-0.5, 0.5), min_size=6, max_size=6),
    fewest=st.floats(1e-4, 1e-2),
    saved=st.lists(st.floats(0, 1e-2), min_size=6, max_size=6),
    slots=st.floats(0, 1),
)
def test_no_correction_makes_a_round_slower_with_a_larger_pool(
    residuals: list[float], fewest: float, saved: list[float], slots: float
) -> None:
    """A round is what its pool costs, and what its slots cost: the more, the fewer they are."""
    pools = np.sort(saved)[::-1]  # the costs of rising pools
    at = np.log(fewest + pools)
    learned = Offsets.learn(asked(ring_cells=[1_024] * 6), np.array(residuals), at)
    between = np.linspace(pools[0], pools[-1], 40)
    correction = learned.log(asked(ring_cells=[1_024] * 40), np.log(fewest + between))
    seconds = (slots * fewest + between) * np.exp(correction)
    assert (np.diff(seconds) <= 1e-9).all()


def test_what_no_price_explains_is_learned_at_its_depth() -> None:
    def round_s(tier: int, mode: str, ring: int) -> float:
        odd = 1.1 if tier == 1_024 else 1.0
        return odd * (2e-3 + 1e-7 * tier + 4e-7 * max(0, tier + 64 - ring))

    frame = study(0, Design(rings_cells=(256, 1_024, 8_192), passage_sd=0, run_sd=0), round_s)
    part = RoundTime.learn(frame)
    blank = RoundTime(part.features, part.regression, part.acceptance)
    measured = 1 / frame["rounds_per_s"].to_numpy()
    here = (frame["tier_cells"] == 1_024).to_numpy()
    gaps = [np.abs(one.seconds(frame) / measured - 1)[here].mean() for one in (part, blank)]
    assert gaps[0] < gaps[1] / 2
