"""What prices leave over is kept where it was measured, knows no ring, and fades out."""

import numpy as np
import pandas as pd
import pytest

from strata.models.latency import RoundTime
from strata.models.offsets import REACH_OCTAVES, SHRINK_ROWS, Offset, Offsets
from strata.models.simulate import Design, study


def asked(**changes: object) -> pd.DataFrame:
    session = {"mode": "on", "spec": 3, "depth_cells": 8_192, "select": "512", "ring_cells": 1_024}
    length = max((len(v) for v in changes.values() if isinstance(v, list)), default=1)
    return pd.DataFrame([session] * length).assign(**changes)


def test_an_offset_is_the_shrunk_mean_of_its_place() -> None:
    trials = asked(depth_cells=[8_192, 8_192, 16_384])
    found = Offsets.learn(trials, np.array([0.1, 0.3, 0.2]))
    assert [place.log for place in found.places] == pytest.approx(
        [0.4 / (2 + SHRINK_ROWS), 0.2 / (1 + SHRINK_ROWS)]
    )
    assert found.places[0] == Offset(
        depth_cells=8_192, rows=4, select="512", log=found.places[0].log
    )


def test_an_offset_fades_out_and_knows_no_ring() -> None:
    offsets = Offsets((Offset(depth_cells=8_192, rows=4, select="512", log=0.1),))
    depths = [8_192 * 2**step for step in (0, REACH_OCTAVES / 2, REACH_OCTAVES, 1, -1)]
    np.testing.assert_allclose(offsets.log(asked(depth_cells=depths)), [0.1, 0.05, 0, 0, 0])
    rings = offsets.log(asked(ring_cells=[256, 1_024, 8_192]))
    assert len(set(rings)) == 1
    assert offsets.log(asked(spec=1))[0] == 0
    assert offsets.log(asked(select="0"))[0] == 0
    assert offsets.log(asked(mode="off"))[0] == 0


def test_places_close_together_are_averaged() -> None:
    two = [Offset(depth_cells=d, rows=4, select="512", log=0.1) for d in (8_000, 8_192)]
    assert Offsets(tuple(two)).log(asked())[0] == pytest.approx(0.1)


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
