"""A running sweep can be watched: from another terminal, and in the table under its own bar."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from scripted import ScriptedRunner, sweep
from tuner_samples import all_pairs, make_records
from typer.testing import CliRunner

from strata.cli import tune_view
from strata.cli.sweep_table import SoFar
from strata.cli.tune_view import SweepBar
from strata.errors import StoreError
from strata.tuner.drive import Started
from strata.tuner.store import MemoryStore
from strata.tuner.store import snapshot as snapshots
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord

COMMAND = [sys.executable, "-c", "from strata.cli.tune import app; app()"]


def test_another_terminal_sees_every_pair_that_is_stored(
    study: StudyRecord, tmp_path: Path
) -> None:
    """The writer has the file all the while, and its last pairs are in its log alone."""
    database = tmp_path / "t.duckdb"
    pairs = all_pairs(study)
    with DuckStore(database) as store:
        store.add_study(study)
        for number, pair in enumerate(pairs[:4], start=1):
            store.add_trials(make_records(pair))
            if number % 2:
                continue
            words = ["--show", "small"] if number == 4 else ["--list"]
            seen = subprocess.run(
                [*COMMAND, *words, "--db", database], capture_output=True, text=True, check=False
            )
            assert seen.returncode == 0, seen.stderr
            who = f"process {os.getpid()} is writing {database}; this is what is in it so far"
            assert who in seen.stderr
            assert (f"{number}/22" if number == 2 else f"{number} of 22") in seen.stdout
        store.add_trials(make_records(pairs[4]))
    with DuckStore(database, read_only=True) as store:
        assert store.writer == ""
        assert len(store.trials(study.study)) == 4 * 5, "the writer lost nothing by being watched"


def test_a_study_without_a_pair_is_shown(study: StudyRecord, tmp_path: Path) -> None:
    from strata.cli.tune import app

    with DuckStore(tmp_path / "t.duckdb") as store:
        store.add_study(study)
    words = ["--show", "small", "--db", str(tmp_path / "t.duckdb")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    assert result.stdout.endswith("no pair was measured yet\n")


def test_what_changes_while_it_is_copied_is_copied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "t.duckdb"
    database.write_bytes(b"one")
    copy, left = snapshots.shutil.copyfile, [2]

    def disturbed(source: Path, target: Path) -> object:
        done = copy(source, target)
        if left[0]:
            left[0] -= 1
            database.write_bytes(b"longer" * (3 - left[0]))
        return done

    monkeypatch.setattr(snapshots, "PAUSE_S", 0)
    monkeypatch.setattr(snapshots.shutil, "copyfile", disturbed)
    with snapshots.copied(database) as path:
        assert path.read_bytes() == database.read_bytes() == b"longer" * 3
    assert not path.exists()
    left[0] = 1 << 30
    with pytest.raises(StoreError, match="is written to all the time"), snapshots.copied(database):
        pass


def shown(table: object) -> list[list[str]]:
    text = io.StringIO()
    Console(file=text, width=100).print(table)
    return [line.split() for line in text.getvalue().splitlines() if line.strip()]


def test_the_table_names_the_ring_that_is_ahead(study: StudyRecord) -> None:
    found, pairs = SoFar(), all_pairs(study)
    mine = [one for one in pairs if (one.tier_cells, one.mode) == (64, "on")]
    for pair in mine:
        gain = {32: 0.9, 64: 1.0, 128: 1.25}[pair.arm_ring_cells]
        found.add(make_records(pair, gain=gain))
    failed = next(one for one in pairs if one.tier_cells == 32)
    found.add(make_records(failed, kind="timeout", rounds_per_s=None))
    head, _, first, second = shown(found.table())
    assert head == ["tier", "drafter", "pairs", "failed", "ahead", "gain", "so", "far"]
    assert first == ["32", failed.mode, "1", "1", "-", "-"]
    assert second == ["64", "on", str(len(mine)), "0", "ring", "128", "+25.0%"]
    found.add(make_records(failed))
    assert shown(found.table())[2][3] == "0", "a try that came through takes the failed one's place"


def test_a_terminal_shows_bar_and_table(
    study: StudyRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = io.StringIO()
    monkeypatch.setattr(tune_view, "err", Console(file=text, force_terminal=True, width=80))
    store = MemoryStore()
    store.add_study(study)
    with SweepBar() as bar:
        bar.start(Started(study=study, done_pairs=0, total_pairs=22, not_resumed=""))
        sweep(study, store, ScriptedRunner(), on_pair=bar.advance)
    last = text.getvalue().rpartition("22/22")[2]
    assert "gain so far" in last
    assert "+12.8%" in last
