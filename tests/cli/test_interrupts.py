"""Ctrl-C at every moment: 130 and one line, whatever is being imported, for every command."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from generate_samples import COMMAND

from tests.conftest import TINY

GOLDEN = Path(__file__).parents[1] / "golden" / "ring-policy-1.json"
SEED = Path(__file__).parents[2] / "data" / "seed" / "decode_by_ring.csv"

# A real SIGINT at the moment when a module begins to be imported, inside of whoever imports it.
AT_IMPORT = """
import os, signal, sys

class Strike:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)
            print("went on", file=sys.stderr)

sys.meta_path.insert(0, Strike())
sys.argv[0] = "strata"
from strata.cli.entry import main
main()
"""

GENERATE = f"generate --model {TINY} --max-new 4 --threads 1 x"
MOMENTS = [
    (GENERATE, "strata.cli.main"),
    (GENERATE, "typer"),
    (GENERATE, "torch"),
    (GENERATE, "torch.fx"),  # where torch itself takes a failed import for an absent module
    ("--help", "typer.rich_utils"),
    ("--version", "strata.cli.main"),
    ("tune --list", "duckdb"),
    ("tune", "strata.tuner.plan"),
    (f"policy show {GOLDEN}", "strata.policy.table_file"),
    (f"policy validate {GOLDEN}", "jsonschema"),
    (f"policy backtest {SEED}", "strata.models.backtest"),
    (f"model predict {GOLDEN}", "pandas"),
    ("bench decode", "strata.bench.decode"),
]


@pytest.mark.parametrize(("line", "module"), MOMENTS)
def test_ctrl_c_while_something_is_imported(line: str, module: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_IMPORT.format(module=module), *line.split()],
        capture_output=True, text=True, cwd=tmp_path, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_ctrl_c_in_the_prefill(tmp_path: Path) -> None:
    """No token is out yet, so there is nothing to keep: no figures, no file, no traceback."""
    assert COMMAND is not None
    target = tmp_path / "run.json"
    words = [COMMAND, "generate", "--model", str(TINY), "--passage", "30000:0", "--json", target]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = b""
        while b"KV ring" not in said:
            said = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (130, b"")
    assert stderr.splitlines()[-1] == b"interrupted"
    assert b"Traceback" not in stderr
    assert not target.exists()


def test_an_import_while_something_is_kept_delays_the_interrupt() -> None:
    """The interrupt waits for the import's end, then is raised: what holds is asked to end."""
    code = """
import signal, sys
from strata.cli import interrupts
interrupts.install()

class Strike:
    def find_spec(self, name, path=None, target=None):
        if name == "colorsys":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Strike())
try:
    with interrupts.raising(), interrupts.holding():
        try:
            import colorsys
        except BaseException:
            print("the import was torn")
        while True:
            pass
except KeyboardInterrupt:
    print("kept")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "kept\n", "")


def test_who_started_it_deaf_to_ctrl_c_gets_it_deaf(tmp_path: Path) -> None:
    """A shell starts what runs in the background so; nothing may take the signal up again."""

    def deaf() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    done = subprocess.run(
        [sys.executable, "-c", AT_IMPORT.format(module="strata.cli.main"), "--version"],
        capture_output=True, text=True, check=False, timeout=60, preexec_fn=deaf,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == "went on\n"
