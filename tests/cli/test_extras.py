"""Without the libraries of the extras every command that needs one says so in one sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from strata.cli.console import EXTRAS

DATA = Path(__file__).parents[2] / "data"
COMMANDS = (
    "model predict quick",
    "model predict --device-profile {data}/none.toml --depth 1K",
    "model fit quick",
    "model evaluate quick",
    "tune export quick --optuna o.db",
    "tune acceptance prompt.txt",
    "tune replay quick",
    "tune verdict quick",
    "tune compare a b",
    "tune costs quick",
    "tune report quick",
    "tune doctor",
    "tune --list",
    "tune import trials.jsonl",
    "policy export",
    "policy check {data}/policies/h200-own-72mib.json",
    "policy backtest {data}/seed/decode_by_ring.csv",
)
SCRIPT = """
import json, os, sys
from typer.testing import CliRunner

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

blocked = set(json.loads(sys.argv[1]))
sys.meta_path.insert(0, Block())
from strata.cli.main import app
found = {}
for words in json.loads(sys.argv[2]):
    result = CliRunner().invoke(app, words.split())
    found[words] = [result.exit_code, result.stderr, repr(result.exception)]
print(json.dumps(found))
"""


@pytest.mark.parametrize("blocked", [sorted(EXTRAS), ["optuna"], ["scipy"]], ids=str)
def test_a_missing_library_is_one_sentence(blocked: list[str], tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("a b c")
    (tmp_path / "trials.jsonl").write_text("{}")
    commands = [words.format(data=DATA) for words in COMMANDS]
    if blocked == ["optuna"]:
        commands = [words for words in commands if "--optuna" in words or "replay" in words]
    if blocked == ["scipy"]:
        commands = [words for words in commands if "backtest" in words or "check" in words]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(blocked), json.dumps(commands)],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for words, (code, told, error) in json.loads(done.stdout).items():
        assert code == 2, (words, told, error)
        assert told.startswith("error: "), words
        assert told.count("\n") == 1, (words, told)
        assert "pip install 'strata[tune]'" in told, (words, told)
