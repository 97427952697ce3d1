"""Costs and acceptance are taken apart from planted figures, to the digit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tuner_samples import FACTS, SMALL_PLAN, make_records
from typer.testing import CliRunner

from strata.cli.tune import app
from strata.errors import StoreError
from strata.tuner.arms import ArmGrid, PairSpec
from strata.tuner.costs import Estimate, draft_prices, prompt_times
from strata.tuner.plan import parse_plan
from strata.tuner.record import TrialRecord
from strata.tuner.store import MemoryStore, TrialStore
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord, create_study

PLAN = SMALL_PLAN.replace(
    "max_new = 12\n", 'max_new = 12\npurposes = ["decode", "break-even", "prefill"]\n'
).replace("search = [0]", "search = [0, 4, 6]")
PRICE = {32: 1.5, 64: 1.25, 128: 1.2}
"""A round with drafts over one without, by ring."""


def planted(pair: PairSpec) -> list[TrialRecord]:
    seed = int(pair.passage.partition(":")[2])
    if pair.purpose == "break-even":
        return make_records(pair, gain=1 / PRICE[pair.arm_ring_cells])
    if pair.purpose == "prefill":
        slow = {"prefill_s": 0.5, "ttft_ms": 600.0, "rounds": None, "rounds_per_s": None}
        return [
            replace(run, **(slow if run.arm == "default" else slow | {"prefill_s": 0.4}))  # type: ignore[arg-type]
            for run in make_records(pair)
        ]
    given = 1.0 + (0.4 + seed / 100 if pair.mode == "on" else 0.0)
    return make_records(pair, tokens_per_round=given)


def fill(store: TrialStore) -> StudyRecord:
    grid = ArmGrid(parse_plan(PLAN, origin="p.toml"), 64)
    study = create_study(grid, FACTS, created_at="2026-01-02T03:04:05+00:00")
    store.add_study(study)
    for pair in grid.every_pair(study=study.study):
        store.add_trials(planted(pair))
    return study


def test_the_price_of_drafts_is_what_was_planted() -> None:
    store = MemoryStore()
    prices = draft_prices(store, fill(store))
    assert {(one.tier_cells, one.ring_cells) for one in prices} == {
        (tier, ring) for tier in (32, 64) for ring in (32, 64, 128) if (tier, ring) != (32, 128)
    }
    for one in prices:
        assert one.break_even.mean == pytest.approx(PRICE[one.ring_cells] - 1)
        assert one.break_even.passages == 3
        assert one.drafting_round_s / one.plain_round_s == pytest.approx(PRICE[one.ring_cells])
        assert one.accepted is not None
        mean = 0.4 + (0 + 4 + 6 + 1 + 2) / 5 / 100
        assert one.accepted.mean == pytest.approx(mean)
        assert one.accepted.passages == 5
        assert one.speed_up is not None
        assert one.speed_up.mean == pytest.approx((1 + mean) / PRICE[one.ring_cells])
        assert one.speed_up.lower < one.speed_up.mean < one.speed_up.upper


def test_prompts_are_compared_with_the_default_ring_beside_them() -> None:
    store = MemoryStore()
    times = prompt_times(store, fill(store))
    assert {one.mode for one in times} == {"off", "on"}
    for one in times:
        assert one.prefill_s.mean == pytest.approx(0.4)
        assert one.ttft_ms.mean == pytest.approx(600.0)
        assert math.exp(one.over_default.mean) == pytest.approx(0.5 / 0.4)


def test_a_pair_that_failed_prices_nothing(study: StudyRecord) -> None:
    store = MemoryStore()
    store.add_study(study)
    grid = ArmGrid(parse_plan(PLAN, origin="p.toml"), 64)
    pair = next(p for p in grid.every_pair(study=study.study) if p.purpose == "break-even")
    store.add_trials(make_records(pair, kind="crash", rounds_per_s=None))
    with pytest.raises(StoreError, match="has priced no draft; put break-even"):
        draft_prices(store, study)
    assert prompt_times(store, study) == []


def test_one_passage_bounds_nothing() -> None:
    one = Estimate.of([2.0])
    assert (one.mean, one.passages) == (2.0, 1)
    assert math.isinf(one.lower)
    assert math.isinf(one.upper)


def test_the_command_prints_both(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with DuckStore(tmp_path / "t.duckdb") as store:
        fill(store)
    done = CliRunner().invoke(app, ["costs", "small", "--db", str(tmp_path / "t.duckdb")])
    assert done.exit_code == 0, done.output
    for part in ("break-even", "0.50", "1.19", "faster", "slower", "prompt", "+25.0%"):
        assert part in done.stdout, done.stdout


def test_the_report_takes_prompts_from_their_own_pairs() -> None:
    from strata.tuner.conclude import conclude
    from strata.tuner.report import summarise

    store = MemoryStore()
    study = fill(store)
    summary = summarise(store, study, conclude(store, study))
    for cell in summary["cells"]:
        wanted = 0.4 if not cell["is_default"] else cell["prefill_s"]["mean"]
        assert cell["prefill_s"]["mean"] == pytest.approx(wanted)
        assert cell["ttft_ms"]["mean"] == pytest.approx(600.0)
        assert cell["rounds_per_s"]["mean"] == pytest.approx(100.0)
