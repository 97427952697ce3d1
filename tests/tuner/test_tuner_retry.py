"""A pair that failed for a passing reason is tried again, and both tries are kept."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_trial import BOTH, NO_MEMORY, OTHER_TOKENS
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedRunner, sweep
from tuner_samples import SMALL_PLAN, make_records
from typer.testing import CliRunner, Result

from strata.cli.tune import app
from strata.cli.tune_view import SweepBar
from strata.tuner import drive
from strata.tuner.arms import ArmGrid
from strata.tuner.conclude import NOTHING_TO_USE
from strata.tuner.plan import parse_plan
from strata.tuner.record import TrialRecord, last_tries
from strata.tuner.store import JsonlStore, MemoryStore, import_study, open_database
from strata.tuner.study import StudyRecord
from strata.tuner.sweep import count_outcomes, count_pairs, due_retries

GRID = ArmGrid(parse_plan(SMALL_PLAN, origin="small.toml"), 64)
FAKE = [sys.executable, str(Path(__file__).with_name("fake_trial.py"))]


def failing(study: StudyRecord) -> MemoryStore:
    """A store of the whole study in which ring 32 ran out of memory everywhere."""
    store = MemoryStore()
    store.add_study(study)
    sweep(study, store, ScriptedRunner(kinds={32: "out of memory"}))
    return store


def later(records: list[TrialRecord], second: int) -> list[TrialRecord]:
    return [replace(one, started_at=f"2026-01-03T00:00:{second:02d}+00:00") for one in records]


class Later(ScriptedRunner):
    """Runs a day after the others."""

    def run_pair(self, *words: object, **more: object) -> list[TrialRecord]:
        return later(super().run_pair(*words, **more), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("kinds", [{}, {32: "timeout"}])
def test_only_what_failed_is_tried_again(study: StudyRecord, kinds: dict[int, str]) -> None:
    store = failing(study)
    before = store.every_trial(study.study)
    failed = {one.pair_id for one in before if one.kind != "ok"}
    runner = Later(kinds=kinds)
    assert sweep(study, store, runner, retry=True) == len(failed) == 12
    every, last = store.every_trial(study.study), store.trials(study.study)
    assert every[: len(before)] == before, "the first tries are kept as they were"
    assert len(every) == 88 + 48
    assert len(last) == 88
    assert {one.retry_of for one in last if one.retry_of} == failed
    assert count_pairs(study, store) == (22, 22)
    found = count_outcomes(last)
    assert (found.measured, found.failed) == ((10, {"timeout": 12}) if kinds else (22, {}))
    assert sweep(study, store, Later()) == 0, "without being asked nothing is tried again"
    assert sweep(study, store, Later(), retry=True) == sum(found.failed.values())


def test_wrong_output_passes_with_no_try(study: StudyRecord) -> None:
    store = MemoryStore()
    store.add_study(study)
    sweep(study, store, ScriptedRunner(kinds={32: "wrong output"}))
    assert due_retries(store.every_trial(study.study)) == {}


def test_a_retry_that_is_stopped_leaves_what_was(study: StudyRecord) -> None:
    store = failing(study)
    with pytest.raises(KeyboardInterrupt):
        sweep(study, store, Later(stop_after=5), retry=True)
    assert count_outcomes(store.trials(study.study)).measured == 10 + 5
    assert sweep(study, store, Later(), retry=True) == 7


def test_tries_travel_with_the_study(study: StudyRecord, tmp_path: Path) -> None:
    store = failing(study)
    sweep(study, store, Later(), retry=True)
    with JsonlStore(tmp_path / "t.jsonl") as lines:
        lines.add_study(study)
        lines.add_trials(store.every_trial(study.study))
    with open_database(tmp_path / "t.duckdb") as database:
        import_study(database, tmp_path / "t.jsonl")
        assert database.every_trial(study.study) == store.every_trial(study.study)
        assert database.trials(study.study) == store.trials(study.study)
        assert len(database.frame(study.study)) == 88


@given(st.permutations(range(3)))
def test_the_last_try_counts_in_whatever_order_they_are_stored(order: list[int]) -> None:
    pair = next(iter(GRID.every_pair(study="s")))
    tries = [later(make_records(replace(pair, retry=n)), n) for n in range(3)]
    every = [one for number in order for one in tries[number]]
    assert last_tries(every) == tries[2]
    assert len({one.trial_id for one in every}) == 12


def command(folder: Path, *words: str, search: int = 3, fresh: str = "[]") -> Result:
    text = SMALL_PLAN.replace("tiers = [32, 64]", 'tiers = [32]\nmodes = ["off"]')
    text = text.replace("rings = [32, 64, 128]", "rings = [32]").replace("[1, 2]", fresh)
    (folder / "p.toml").write_text(text.replace("search = [0]", f"search = [{search}]"))
    out = ["--out", str(folder)] if words[0] == "sweep" else []
    return CliRunner().invoke(app, [*words, str(folder / "p.toml"), *out])


@pytest.fixture
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails on demand is the fake trial server, in the place of the real one's command."""
    monkeypatch.setattr(drive, "server_command", lambda **words: tuple(FAKE))


@pytest.mark.usefixtures("fake_engine")
def test_exit_codes_say_what_was_measured(tmp_path: Path) -> None:
    """That a whole one ends with 0, again and again, is tested on the real engine."""
    fresh = f"[{NO_MEMORY}, {OTHER_TOKENS}, 4]"
    words = "warning: 2 of 5 pairs failed (1 out of memory, 1 wrong output)"
    for switches in ([], ["--resume", "--retry", "failed"]):
        part = command(tmp_path, "sweep", *switches, fresh=fresh)
        assert part.exit_code == 1
        assert words in part.stderr
        assert "use it:" in part.stdout or NOTHING_TO_USE in part.stdout
    with open_database(tmp_path / "strata.duckdb", read_only=True) as store:
        study = store.studies()[-1]
        assert len(store.every_trial(study.study)) == len(store.trials(study.study)) + 4


@pytest.mark.usefixtures("fake_engine")
def test_a_sweep_that_measured_nothing_ends_with_2(tmp_path: Path) -> None:
    lines = tmp_path / "t.jsonl"
    for words in (["sweep"], ["sweep", "--resume"], ["run-trials", "--jsonl", str(lines)]):
        result = command(tmp_path, *words, search=BOTH)
        assert result.exit_code == 2
        assert "measured nothing: all 2 pairs failed (2 out of memory), the first" in result.stderr
        assert result.stdout == ""
    assert not list(tmp_path.glob("small-*")), "no table, no report"
    again = command(tmp_path, "run-trials", "--jsonl", str(lines), "--retry", "failed",
                    search=BOTH)  # fmt: skip
    assert again.exit_code == 2
    assert lines.read_text().count('"record":"strata.trial/') == 16


@pytest.mark.usefixtures("fake_engine")
@pytest.mark.parametrize(
    ("words", "onward"),
    [(["sweep"], "go on with --resume"), (["run-trials"], "the same command goes on")],
)
def test_who_is_interrupted_is_told_how_to_go_on(
    words: list[str], onward: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run-trials` has no --resume, so it names none."""

    def interrupt(bar: SweepBar, progress: object) -> None:
        raise KeyboardInterrupt

    lines = ["--jsonl", str(tmp_path / "t.jsonl")] if words == ["run-trials"] else []
    with monkeypatch.context() as patched:
        patched.setattr(SweepBar, "advance", interrupt)
        stopped = command(tmp_path, *words, *lines)
    assert stopped.exit_code == 130
    assert stopped.stderr.splitlines()[-1].endswith(onward)
    if words == ["sweep"]:
        refused = command(tmp_path, "sweep")
        assert refused.exit_code == 2
        assert "has 1 of 2 pairs" in refused.stderr
    else:
        assert command(tmp_path, *words, *lines).exit_code == 0
