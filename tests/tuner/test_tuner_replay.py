"""A recorded grid answers for every trial: which sampler would have found its rings, and when."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from planted_grid import planted_study
from typer.testing import CliRunner

from strata.cli.tune import app
from strata.errors import StoreError
from strata.tuner.replay import RecordedGrid, Replay, replay
from strata.tuner.store import MemoryStore
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord

SEEDS = range(20)


@pytest.fixture(scope="module")
def recorded() -> RecordedGrid:
    store = MemoryStore()
    return RecordedGrid.load(store, planted_study(store))


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "planted.duckdb"
    with DuckStore(path) as store:
        planted_study(store)
    return path


def test_the_cost_model_finds_the_rings_in_a_quarter_of_the_grid_and_before_random(
    recorded: RecordedGrid,
) -> None:
    quarter = len(recorded.rivals) // 4
    ours = replay(recorded, "cost-model", seeds=SEEDS, max_arms=quarter)
    random = replay(recorded, "random", seeds=SEEDS)
    assert ours.regret_ratio[0, 0] > 0.02  # there is something to find
    assert ours.arms_to_band(0.01)[1] <= quarter
    assert ours.arms_to_band(0.01)[1] < random.arms_to_band(0.01)[1]


@pytest.mark.parametrize("sampler", ["grid", "random", "tpe"])
def test_every_sampler_ends_with_nothing_left_to_find(recorded: RecordedGrid, sampler: str) -> None:
    found = replay(recorded, sampler, seeds=range(2))
    assert found.found.shape == (2, len(recorded.rivals) + 1)
    assert (np.diff(found.found, axis=1) >= 0).all()
    assert found.regret_ratio[:, -1] == pytest.approx(0.0, abs=1e-12)
    assert found.regret_ratio[:, 0] == pytest.approx(1 - math.exp(-found.best))


def test_the_same_seed_gives_the_same_curve(recorded: RecordedGrid) -> None:
    one, other = (replay(recorded, "cost-model", seeds=[5], max_arms=8) for _ in range(2))
    assert (one.found == other.found).all()


def test_regret_and_arms_are_counted_from_no_arm_onwards() -> None:
    found = np.log([[1.0, 1.0, 1.1, 1.1], [1.0, 1.1, 1.1, 1.1], [1.0, 1.0, 1.0, 1.0]])
    one = Replay(sampler="random", num_arms=3, found=found, best=math.log(1.1))
    assert one.arms_to(0.01) == [2, 1, math.inf]
    assert one.arms_to_band(0.01) == (1, 2, math.inf)
    assert one.arms_to_band(0.5) == (0, 0, 0)
    assert one.regret_after(0.0) == pytest.approx((1 / 11,) * 3)
    assert one.regret_after(2 / 3) == pytest.approx((0.0, 0.0, 1 / 11), abs=0.02)
    stopped = Replay(sampler="random", num_arms=9, found=found, best=math.log(1.1))
    assert stopped.regret_after(0.5) is None


def test_a_failed_arm_finds_nothing(recorded: RecordedGrid) -> None:
    gains = {arm: None if arm.ring_cells > 8_192 else gain for arm, gain in recorded.gains.items()}
    failed = RecordedGrid(recorded.grid, gains, recorded.records)
    found = replay(failed, "random", seeds=[0])
    assert found.best < recorded.best(list(recorded.gains))
    assert found.regret_ratio[0, -1] == pytest.approx(0.0, abs=1e-12)


def test_the_default_and_what_memory_refused_count_nothing(recorded: RecordedGrid) -> None:
    assert all(arm.ring_cells != 8_192 for arm in recorded.rivals)
    refused = {arm for arm in recorded.gains if arm.ring_cells > 12_288}
    records = {
        arm: [replace(run, kind="out of memory") for run in runs] if arm in refused else runs
        for arm, runs in recorded.records.items()
    }
    gains = {arm: None if arm in refused else gain for arm, gain in recorded.gains.items()}
    failed = RecordedGrid(recorded.grid, gains, records)
    assert failed.rivals == recorded.rivals - refused
    found = replay(failed, "grid", seeds=[0])
    assert found.num_arms == found.found.shape[1] - 1 == len(failed.rivals)


def test_half_a_grid_is_not_replayed(study: StudyRecord) -> None:
    store = MemoryStore()
    store.add_study(study)
    with pytest.raises(StoreError, match="has 0 of 22 pairs, and a replay needs them all"):
        RecordedGrid.load(store, study)


@pytest.mark.parametrize(("suffix", "head"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_command_prints_a_table_and_draws(
    suffix: str, head: bytes, database: Path, tmp_path: Path
) -> None:
    picture = tmp_path / f"curves.{suffix}"
    words = ["replay", "planted", "--sampler", "random", "--sampler", "cost-model", "--seeds", "2",
             "--arms", "9", "--db", str(database), "--out", str(picture)]  # fmt: skip
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr
    assert "40 arms, 2 seeds" in result.stdout
    assert "not run" in result.stdout  # nine arms are no quarter of the grid
    rows = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    assert {"random", "cost-model"} <= set(rows)
    assert picture.read_bytes().startswith(head)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "curves.pdf"], "ends in none of .svg, .png"),
        (["--out", "no/such/curves.svg"], "is no folder"),
        (["--sampler", "luck"], "'luck' is none of grid, random, tpe, gp, cost-model"),
    ],
)
def test_bad_words_are_one_sentence(words: list[str], message: str, database: Path) -> None:
    result = CliRunner().invoke(app, ["replay", "planted", "--db", str(database), *words])
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
