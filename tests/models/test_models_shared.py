"""What one part of a sweep teaches about another: experts by rows, selecting by the fetches."""

import numpy as np
import pandas as pd
import pytest

from strata.models.features import NAMES, Features
from strata.models.latency import RoundTime
from strata.models.simulate import Design, study

DESIGN = Design(
    tiers_cells=(1_024, 8_192, 32_768, 65_536), rings_cells=(2_304, 4_096, 8_192, 12_288),
    default_ring_cells=8_192, search_passages=2, passage_sd=0.001, run_sd=0.001,
)  # fmt: skip
SELECTED = 2_048


def missed_cells(tier: int, ring: int) -> int:
    """Return the cells a token misses: none where the ring holds everything."""
    depth = tier + DESIGN.max_new // 2
    return 0 if ring >= depth or depth <= SELECTED else round(2e7 * (1 / ring - 1 / depth))


def priced(tier: int, mode: str, ring: int) -> float:
    missed = missed_cells(tier, ring)
    selects = tier > SELECTED
    return 1.5e-4 + 4e-5 * (mode == "on") + 4e-5 * selects + 1e-8 * missed + 1e-5 * (missed > 0)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    made = study(0, DESIGN, priced).assign(select=str(SELECTED))
    missed = [
        missed_cells(t, r) for t, r in zip(made["tier_cells"], made["ring_cells"], strict=True)
    ]
    per_round = made["tokens_per_round"] * missed / made["page_cells"]
    return made.assign(
        kv_misses=(per_round * made["rounds"]).round(), kv_lookups=1_000_000, kv_hits=1_000_000
    )


def test_selecting_is_paid_where_no_round_selected_without_a_fetch(frame: pd.DataFrame) -> None:
    """With 8K left out all rounds that select have pages to fetch; 8K has none at 12,288."""
    out = frame["tier_cells"] == 8_192
    part = RoundTime.learn(frame[~out])
    assert part.prices_s["selecting"] > 3e-5 > part.prices_s["page_fetches"]
    asked = frame[out & (frame["ring_cells"] == 12_288) & (frame["mode"] == "off")].head(1)
    truth = priced(8_192, "off", 12_288)
    assert part.seconds(asked)[0] == pytest.approx(truth, rel=0.1)


def test_a_fetch_has_its_price_where_rounds_tell_it_apart(frame: pd.DataFrame) -> None:
    assert RoundTime.learn(frame).prices_s["page_fetches"] > 5e-6


def test_rows_that_saw_no_scarcity_learn_it_from_other_rows() -> None:
    made = study(1, DESIGN, priced)
    slots = np.where(made["mode"] == "on", np.where(made["ring_cells"] > 8_000, 200, 280), 0)
    low = np.where(made["ring_cells"] > 8_000, 40, 200)
    slots = np.where(made["mode"] == "on", slots, low)
    missed = (1 + made["spec"]) * np.maximum(0, 200 - slots) / 20
    seen = made.assign(expert_slots=slots, expert_misses=missed * made["rounds"])
    curves = Features.learn(seen).expert_misses
    assert float(curves[1](np.array([40.0]))[0]) == pytest.approx(8)
    assert float(curves[2](np.array([40.0]))[0]) == pytest.approx(16)
    assert (np.diff(curves[2](np.arange(0.0, 288.0))) <= 0).all()
    assert "missed_experts" in NAMES
