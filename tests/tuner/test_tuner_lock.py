"""Two `run-trials` never add to one file, and one that two have written says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tuner_samples import FACTS, all_pairs, make_records
from typer.testing import CliRunner

from strata.cli.tune import app
from strata.errors import StoreError
from strata.tuner.record import TrialRecord
from strata.tuner.store import JsonlStore, MemoryStore, import_study
from strata.tuner.study import StudyRecord, create_study

SECOND = """
import sys
from pathlib import Path
from strata.errors import StoreError
from strata.tuner.record import TrialRecord
from strata.tuner.store import JsonlStore, MemoryStore, import_study
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


def interleaved(path: Path, study: StudyRecord, *, second: StudyRecord | None = None) -> None:
    """Write what two processes without a lock left: each its study, then the same pair."""
    here, there = (
        [replace(one, conditions={"host": host}, started_at=f"2026-01-02T03:04:0{at}+00:00")
         for one in make_records(all_pairs(study)[0])]
        for host, at in (("here", 5), ("there", 7))
    )  # fmt: skip
    lines = [json.dumps(study.to_json())]
    lines += [] if second is None else [json.dumps(second.to_json())]
    lines += [one.to_line() for one in [*here, *there]]
    path.write_text("".join(line + "\n" for line in lines))


@pytest.mark.parametrize("read", ["import", "go on"])
def test_an_interleaved_file_names_line_and_writers(
    read: str, study: StudyRecord, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    interleaved(path, study)
    before = path.read_bytes()
    with pytest.raises(StoreError) as raised:
        import_study(MemoryStore(), path) if read == "import" else JsonlStore(path)
    words = str(raised.value)
    assert words.startswith(f"{path}, line 6: trial ")
    assert "stands in line 2 already: two run-trials added to this file at once" in words
    assert "one on here that ran it at 2026-01-02T03:04:05+00:00" in words
    assert "one on there that ran it at 2026-01-02T03:04:07+00:00" in words
    assert path.read_bytes() == before


def test_a_second_study_line_names_when_both_began(study: StudyRecord, tmp_path: Path) -> None:
    again = create_study(study.grid, FACTS, created_at="2026-01-02T03:04:09+00:00")
    interleaved(tmp_path / "t.jsonl", study, second=again)
    with pytest.raises(StoreError, match="line 2: a second study line: two run-trials") as raised:
        import_study(MemoryStore(), tmp_path / "t.jsonl")
    assert study.created_at in str(raised.value)
    assert again.created_at in str(raised.value)


def test_a_copied_line_is_not_two_writers(study: StudyRecord, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    record: TrialRecord = make_records(all_pairs(study)[0])[0]
    lines = [json.dumps(study.to_json()), record.to_line(), record.to_line()]
    path.write_text("".join(line + "\n" for line in lines))
    with pytest.raises(
        StoreError, match=r"line 3: trial \w+ stands in line 2 already, so the line"
    ):
        import_study(MemoryStore(), path)
