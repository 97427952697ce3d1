"""A study opens in Optuna, arm by arm, with the gains that the table is made of."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime
from pathlib import Path

import optuna
import pytest
from planted_grid import planted_study
from tuner_samples import all_pairs, make_records
from typer.testing import CliRunner

from strata.cli.tune import app
from strata.errors import StoreError
from strata.tuner.dashboard import export_optuna
from strata.tuner.store import MemoryStore
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord
from strata.tuner.sweep import mean_gain


def load(path: Path, name: str) -> optuna.Study:
    return optuna.load_study(study_name=name, storage=f"sqlite:///{path}")


def test_optuna_loads_every_arm_with_its_gain(tmp_path: Path) -> None:
    store = MemoryStore()
    study = planted_study(store)
    name, count = export_optuna(store, "planted", tmp_path / "o.db")
    assert [path.name for path in tmp_path.iterdir()] == ["o.db"]
    loaded = load(tmp_path / "o.db", name)
    arms = study.grid.arms()
    assert count == len(loaded.trials) == len(arms)
    assert loaded.direction == optuna.study.StudyDirection.MAXIMIZE
    assert loaded.user_attrs["plan_sha256"] == study.plan_sha256
    by_arm = {tuple(trial.params.values()): trial for trial in loaded.trials}
    records = store.trials(study.study)
    for arm in arms:
        trial = by_arm[arm.tier_cells, arm.mode, arm.ring_cells]
        gain = mean_gain(records, list(study.grid.pairs(arm, study=study.study)))
        assert gain is not None
        assert trial.value == pytest.approx(math.expm1(gain))
        assert trial.user_attrs["rounds_per_s"] > 0
        assert 0 < trial.user_attrs["hit_ratio"] <= 1
    assert loaded.best_value == max(trial.value or 0 for trial in loaded.trials)
    # It is a whole study: Optuna's own tools work on it.
    assert set(optuna.importance.get_param_importances(loaded)) == {
        "tier_cells", "mode", "ring_cells"
    }  # fmt: skip


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_times_are_those_of_the_trials_whatever_the_zone(
    study: StudyRecord, tmp_path: Path, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    store.add_study(study)
    records = make_records(all_pairs(study)[0])
    store.add_trials(records)
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        name, _ = export_optuna(store, study.study, tmp_path / "o.db")
        (trial,) = load(tmp_path / "o.db", name).trials
        times = [datetime.fromisoformat(run.started_at) for run in records]
        assert trial.datetime_start is not None
        # Optuna gives times without a zone, which are local ones.
        assert trial.datetime_start.astimezone(UTC) == min(times)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_arms_that_failed_or_never_ran_are_told_apart(study: StudyRecord, tmp_path: Path) -> None:
    store = MemoryStore()
    store.add_study(study)
    pairs = all_pairs(study)
    store.add_trials(make_records(pairs[0], kind="timeout", rounds_per_s=None))
    ring = next(pair for pair in pairs if pair.arm_ring_cells != pairs[0].arm_ring_cells)
    store.add_trials(make_records(ring, gain=1.25))
    name, count = export_optuna(store, study.study, tmp_path / "o.db")
    trials = load(tmp_path / "o.db", name).trials
    assert count == 2
    assert [trial.state.name for trial in trials] == ["FAIL", "COMPLETE"]
    assert trials[0].user_attrs["failed"] == {"timeout": 4}
    assert trials[1].value == pytest.approx(0.25)


def test_the_command_never_overwrites(study: StudyRecord, tmp_path: Path) -> None:
    with DuckStore(tmp_path / "t.duckdb") as store:
        store.add_study(study)
        store.add_trials(make_records(all_pairs(study)[0]))
    words = ["export", "small", "--db", str(tmp_path / "t.duckdb"), "--optuna"]
    target = tmp_path / "o.db"
    done = CliRunner().invoke(app, [*words, str(target)])
    assert done.exit_code == 0, done.output
    assert f"optuna-dashboard sqlite:///{target}" in done.stdout
    again = CliRunner().invoke(app, [*words, str(target)])
    assert again.exit_code == 2
    assert "is there already" in again.stderr
    nowhere = CliRunner().invoke(app, words[:-1])
    assert nowhere.exit_code == 2
    assert "--jsonl FILE, --parquet FOLDER or --optuna FILE" in nowhere.stderr


def test_a_failed_export_leaves_nothing(
    study: StudyRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    store.add_study(study)
    store.add_trials(make_records(all_pairs(study)[0]))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("strata.tuner.dashboard._write", full)
    with pytest.raises(StoreError, match="No space left"):
        export_optuna(store, study.study, tmp_path / "o.db")
    assert not list(tmp_path.iterdir())
