"""`strata.toml`: every switch of every command, weaker than flags and environment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner, Result

from strata.cli import config_file
from strata.cli.main import app
from strata.errors import UsageError
from tests.conftest import TINY


@pytest.fixture(autouse=True)
def _nothing_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLICY", "ADAPT", "TABLE"):
        monkeypatch.delenv(f"STRATA_KV_RING_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def run(line: str) -> Result:
    return CliRunner().invoke(app, line.split())


def generated(line: str = "") -> dict[str, Any]:
    result = run(f"generate --model {TINY} --json - x {line}")
    assert result.exit_code == 0, result.stderr
    return dict(json.loads(result.stdout))


def write(text: str, place: str = "strata.toml") -> None:
    path = Path(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_flags_win_over_the_environment_and_that_over_the_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write('[generate]\nmax-new = 3\nignore-eos = true\nkv-page = 8\nkv-ring-policy = "depth"')
    found = generated()
    assert (len(found["tokens"]), found["ring_policy"]) == (3, "depth")
    assert len(generated("--max-new 4")["tokens"]) == 4
    assert generated("--kv-ring-policy adapt")["ring_policy"] == "adapt"
    monkeypatch.setenv("STRATA_KV_RING_ADAPT", "1")
    assert generated()["ring_policy"] == "adapt"
    monkeypatch.setenv("STRATA_KV_RING_POLICY", "fixed")
    result = run(f"generate --model {TINY} x")
    assert "STRATA_KV_RING_POLICY goes before kv-ring-policy of strata.toml" in result.stderr
    assert generated()["ring_policy"] == "fixed"
    assert generated("--kv-ring-policy depth")["ring_policy"] == "depth"


def test_the_folder_s_file_goes_before_the_user_s_and_a_named_one_stands_alone() -> None:
    write("[generate]\nmax-new = 3\nignore-eos = true", "config/strata/strata.toml")
    assert len(generated()["tokens"]) == 3
    write("[generate]\nmax-new = 2")
    assert len(generated()["tokens"]) == 2
    write("[generate]\nignore-eos = true\nmax-new = 5", "own.toml")
    words = f"--config own.toml generate --model {TINY} --json - x"
    assert len(json.loads(run(words).stdout)["tokens"]) == 5
    # A misspelt key of a file that is not read is no error.
    write("nonsense")
    assert run(words).exit_code == 0


def test_texts_lists_and_numbers_of_cells() -> None:
    write('[generate]\nmax-new = 40\nignore-eos = true\nkv-resident = 64\nkv-select = "1K"\n')
    whole = generated()["text"]
    stop = whole[3:5]
    write(f"[generate]\nmax-new = 40\nignore-eos = true\nstop = ['@@@', {json.dumps(stop)}]\n")
    assert generated()["text"] == whole[: whole.index(stop)]


def test_what_stands_in_tune_itself_is_sweep_s() -> None:
    write('[tune]\nplan = "x"')
    assert "strata.toml: 'plan' in [tune] is no command or switch" in run("tune").stderr
    write('[tune]\nout = "elsewhere"\n[tune.verdict]\ndb = "other.duckdb"')
    assert "no trial database at elsewhere/strata.duckdb" in run("tune --list").stderr
    assert "no trial database at other.duckdb" in run("tune verdict x").stderr
    write("[tune]\nworkers = 2\n[tune.sweep]\nworkers = 3")
    assert "workers of [tune] is said twice" in run("tune --list").stderr


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[generate]\ntemprature = 1", "'temprature' in [generate] is no command or switch; did"
                                       " you mean temperature?"),
        ("[generat]\ntop-k = 1", "'generat' in the top is no command; did you mean generate?"),
        ("[policy.explian]\n", "'explian' in [policy] is no command or switch; did you mean expl"),
        ("max-new = 1", "'max-new' in the top is no command"),
        ("generate = 1", "generate at the top is a command"),
        ("[generate]\nhelp = true", "'help' in [generate] is no"),
        ("[generate]\nprompt = 'x'", "'prompt' in [generate] is no"),
        ("[generate]\ntemperature = 'hot'", "temperature in [generate] is 'hot'; give a number"),
        ("[generate]\nmax-new = true", "max-new in [generate] is True; give a whole number"),
        ("[generate]\nmax-new = 1.5", "max-new in [generate] is 1.5"),
        ("[generate]\nno-mtp = 1", "no-mtp in [generate] is 1; give true or false"),
        ("[generate]\nstop = [1]", "stop in [generate] is 1; give a text"),
        ("[generate]\nmodel = 5", "model in [generate] is 5; give a text"),
        ("[generate]\nspec = [1]", "spec in [generate] is [1]; give a text or a whole number"),
        ("[generate]\nkv-resident = 'many'", "--kv-resident: 'many'"),
        ("[bench.decode]\nrepeats = 1", "repeats in [bench.decode] is 1; give at least 5"),
        ("[generate", "is no TOML"),
        (f"x = {'[' * 5000}", "it nests deeper than 64 levels"),
        (f"[generate]\nseed = {'9' * 5000}", "a whole number of thousands of digits"),
    ],
)  # fmt: skip
def test_what_no_command_knows_is_named_with_its_file(text: str, sentence: str) -> None:
    write(text)
    result = run(f"generate --model {TINY} x")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: strata.toml")
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_named_file_that_is_not_there() -> None:
    result = run("--config no.toml generate x")
    assert (result.exit_code, result.stderr) == (2, "error: no.toml: No such file or directory\n")


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", {})
    if not below:
        yield path, command
    for name, one in below.items():
        yield from leaves(one, (*path, name))


def test_every_switch_of_every_command_can_be_named() -> None:
    """With a value of its type, and by each of its long names; nothing else is taken."""
    root = typer.main.get_command(app)
    count = 0
    for path, command in leaves(root):
        for option in command.params:
            if option.param_type_name != "option" or option.is_eager or option.name == "help":
                continue
            for word in option.opts:
                tried = []
                for value in ('"text"', "true", "5", "5000", "0.5", '["text"]', '"failed"'):
                    write(f"[{'.'.join(path)}]\n{word.removeprefix('--')} = {value}")
                    try:
                        found = config_file.read_defaults(root, path[0], None, {})
                    except UsageError:
                        continue
                    table = found.map
                    for step in path:
                        table = table[step]
                    tried.append(table[option.name])
                    break
                assert tried, (path, word)
                count += 1
    assert count > 150


def test_quiet_prints_the_text_alone_and_still_says_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRATA_KV_RING_POLICI", "x")
    words = f"generate --model {TINY} x --max-new 3 --ignore-eos"
    warned = "warning: STRATA_KV_RING_POLICI is no variable of strata and says nothing; did you"
    assert run(words).stderr.count(warned) == 1
    result = run(f"{words} --quiet")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == run(words).stdout != ""
    result = run(f"{words} --quiet --top-p 2")
    assert result.stderr.startswith("error: --top-p: 2")
    assert len(result.stderr.splitlines()) == 1
    write("[generate]\nquiet = true\nmax-new = 2\n")
    assert run(f"generate --model {TINY} x").stderr == ""
    assert "warning: STRATA" in run("policy explain --depth 1K --device cpu").stderr
