"""What a person reads before running a command: examples, defaults, completion."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from strata.cli.main import app

ROOT = typer.main.get_command(app)
DOCS = Path(__file__).parents[2]
OPT_IN = {
    "--file", "--passage", "--json", "--stop", "--workload", "--study", "--jsonl", "--parquet",
    "--optuna", "--show", "--retry", "--device-profile",
}  # fmt: skip
"""Switches that name something or do nothing; `--out` of replay draws where it is named."""


def walk(command: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    yield " ".join(path), command
    for name, below in getattr(command, "commands", {}).items():
        yield from walk(below, (*path, name))


LEAVES = {path: one for path, one in walk() if not hasattr(one, "commands")}


def options(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "option" and one.name != "help"]


@pytest.mark.parametrize("path", LEAVES)
def test_every_help_has_an_example_that_parses(path: str) -> None:
    result = CliRunner().invoke(app, [*path.split(), "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    epilog = LEAVES[path].epilog or ""
    assert epilog.startswith(f"Example: strata {path}")
    assert epilog in " ".join(result.stdout.split())
    words = shlex.split(epilog.removeprefix(f"Example: strata {path}"))
    LEAVES[path].make_context(path, words)  # raises where a word is none of the command's


@pytest.mark.parametrize("path", LEAVES)
def test_every_help_says_each_default(path: str) -> None:
    shown = CliRunner().invoke(app, [*path.split(), "--help"], env={"COLUMNS": "200"}).stdout
    shown = " ".join(shown.replace("│", " ").split())
    for option in options(LEAVES[path]):
        if option.required or option.default is False or OPT_IN & {*option.opts}:
            continue
        if path == "tune replay" and option.name == "out":
            continue
        said = option.show_default if isinstance(option.show_default, str) else option.default
        if said is True:
            said = option.opts[0].removeprefix("--")
        assert said not in (None, ()), f"{path} {option.opts[0]} does not say its default"
        assert str(said) in shown, (path, option.opts)


def test_readme_and_reference_name_every_command_and_option() -> None:
    readme = (DOCS / "README.md").read_text(encoding="utf-8")
    pages = (DOCS / "docs" / "reference.md").read_text(encoding="utf-8")
    sections = {
        part.partition("`")[0].removeprefix("strata").strip(): part
        for part in pages.split("\n## `")[1:]
    }
    assert sections.keys() == {path for path, _ in walk()}
    for path, command in walk():
        assert path.split(" ")[-1] in readme, f"README.md does not name strata {path}"
        for option in options(command):
            for word in option.opts:
                assert word in sections[path], (path, word)
    for word in ("--config", "--quiet", "strata.toml"):
        assert word in pages
        assert word in readme


@pytest.mark.parametrize(
    ("line", "wanted", "others"),
    [
        ("strata ", "generate tune policy model bench", ""),
        ("strata tune ", "sweep verdict quick", "fixed"),
        ("strata tune q", "quick", "verdict"),
        ("strata tune --re", "--resume", "--workers"),
        ("strata tune quick --wo", "--workers", "--resume"),
        ("strata tune run-trials ", "quick", "sweep"),
        ("strata generate --passage ", "1K 4K", ""),
        ("strata generate --passage 4K:", "4K:0 4K:7", "1K"),
        ("strata generate --kv-ring-policy ", "fixed depth adapt learned", ""),
        ("strata policy explain --policy a", "adapt", "fixed"),
    ],
)
def test_a_shell_completes(line: str, wanted: str, others: str) -> None:
    cursor = str(len(line.split(" ")) - 1)
    environ = {"_STRATA_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": cursor}
    result = CliRunner().invoke(app, [], prog_name="strata", env=environ)
    assert result.exit_code == 0, result.output
    found = result.stdout.split()
    assert {*wanted.split()} <= {*found}
    assert not {*others.split()} & {*found}
