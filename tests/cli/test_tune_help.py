"""`strata tune --help` says what the command takes, and a misspelt command is no plan."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from strata.cli.main import app


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["tune", *words], env={"COLUMNS": "100"})


def test_help_names_the_plan_and_every_switch_of_a_sweep() -> None:
    page, own = run("--help"), run("sweep", "--help")
    assert page.exit_code == own.exit_code == 0
    assert "tune [PLAN] [OPTIONS] | COMMAND [ARGS]..." in page.stdout
    switches = re.findall(r"--[a-z-]+", own.stdout)
    assert {"--resume", "--retry", "--out", "--workers", "--model", "--modes"} <= set(switches)
    assert [one for one in switches if one not in page.stdout] == []
    assert "A built-in plan (quick) or a TOML file" in page.stdout
    assert all(name in page.stdout for name in ("verdict", "run-trials", "doctor"))


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("verdit", "Did you mean 'verdict'?"),
        ("run-trial", "Did you mean 'run-trials'?"),
        ("quik", "Did you mean 'quick'?"),
        ("nonsense", "There is the plan 'quick'."),
    ],
)
def test_a_misspelt_command_is_not_read_as_a_plan(word: str, hint: str) -> None:
    result = run(word, "small")
    assert result.exit_code == 2
    words = " ".join(result.stderr.replace("│", " ").split())
    assert f"No such command or plan '{word}'. {hint}" in words


def test_a_file_is_a_plan_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "verdit").write_text("name =")
    for word, message in (
        ("verdit", "plan verdit is not TOML"),
        ("x.toml", "plan 'x.toml' cannot"),
    ):
        result = run(word)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: {message}")
