"""Two `run-trials` never add to one file, and one that two have written says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tuner_samples import all_pairs, make_records
from typer.testing import CliRunner

from strata.cli.tune import app
from strata.errors import StoreError
from strata.tuner.store import JsonlStore
from strata.tuner.study import StudyRecord

SECOND = """
import sys
from pathlib import Path
from strata.errors import StoreError
from strata.tuner.store import JsonlStore
try:
    JsonlStore(Path(sys.argv[1]))
except StoreError as error:
    sys.exit(str(error))
"""


def test_a_second_writer_is_told_who_has_the_file(study: StudyRecord, tmp_path: Path) -> None:
    path, pair = tmp_path / "t.jsonl", all_pairs(study)[0]
    with JsonlStore(path) as store:
        store.add_study(study)
        second = subprocess.run(
            [sys.executable, "-c", SECOND, path], capture_output=True, text=True, check=False
        )
        assert second.returncode == 1
        words = f"{path}: process {os.getpid()} is adding trials to it; wait for that to end, or"
        assert second.stderr.startswith(words)
        with pytest.raises(StoreError, match="is adding trials to it"):
            JsonlStore(path)
        store.add_trials(make_records(pair))
    with JsonlStore(path) as store:
        assert len(store.trials(study.study)) == 4, "the first writer lost nothing"


def test_at_the_command_the_second_one_ends_with_2(study: StudyRecord, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with JsonlStore(path) as store:
        store.add_study(study)
        result = CliRunner().invoke(app, ["run-trials", "quick", "--jsonl", str(path)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {path}: process {os.getpid()} is adding trials to it")
    assert result.stderr.count("\n") == 1


def test_a_file_that_nothing_came_of_is_not_left_behind(tmp_path: Path) -> None:
    JsonlStore(tmp_path / "t.jsonl").close()
    assert not (tmp_path / "t.jsonl").exists()
