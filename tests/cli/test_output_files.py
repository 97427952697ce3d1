"""A file that a user names lies in a folder that is there: every command refuses alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from strata.cli.main import app

TABLE = Path(__file__).parent.parent / "golden" / "ring-policy-1.json"
LINES = [
    "generate x --json",
    "model evaluate s --json",
    "model fit s --out",
    f"policy declare {TABLE} --field device --value x --reason y --out",
    f"policy merge {TABLE} {TABLE} --out",
    "policy export --out",
    "tune export s --jsonl",
    "tune export s --parquet",
    "tune export s --optuna",
    "tune run-trials quick --jsonl",
    "tune replay s --out",
]


@pytest.mark.parametrize("line", LINES)
def test_a_folder_that_is_not_there_is_refused_and_not_made(line: str, tmp_path: Path) -> None:
    """Before the work: no database is there either, and none is asked for."""
    place = tmp_path / "no" / "such" / "file.svg"
    result = CliRunner().invoke(app, [*line.split(), str(place)])
    assert result.exit_code == 2
    assert result.stderr == f"error: {line.split()[-1]}: {place.parent} is no folder\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", [line for line in LINES if not line.endswith("--parquet")])
def test_a_folder_in_place_of_a_file_is_refused(line: str, tmp_path: Path) -> None:
    place = tmp_path / "folder.svg"
    place.mkdir()
    result = CliRunner().invoke(app, [*line.split(), str(place)])
    assert result.exit_code == 2
    assert result.stderr == (f"error: {line.split()[-1]}: {place} is a folder; give a file\n")
