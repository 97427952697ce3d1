"""Run `strata generate` in this process or as a user types it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from strata.cli.main import app
from tests.conftest import TINY

COMMAND = shutil.which("strata", path=str(Path(sys.executable).parent)) or shutil.which("strata")


def generate(*words: object, stdin: str | bytes | None = None, model: Path = TINY) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(
        app, ["generate", "--model", str(model), *map(str, words)], input=stdin
    )


def spawn(
    *words: object, stdin: bytes = b"", before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    assert COMMAND is not None, "the package is not installed: no `strata` beside this Python"
    arguments = [COMMAND, "generate", "--model", str(TINY), *map(str, words)]
    done = subprocess.run(
        arguments, input=stdin, capture_output=True, timeout=120, check=False, preexec_fn=before
    )
    return subprocess.CompletedProcess(
        arguments, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def one_sentence(code: int, stdout: str, stderr: str) -> str:
    """Assert a clean refusal and return its sentence."""
    assert code == 2, stderr
    assert "Traceback" not in stderr
    assert stdout == ""
    lines = stderr.strip().splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("error: ")
    return lines[0]


def refused(*words: object, **how: Any) -> str:
    """Return the one sentence with which the command refuses."""
    result = generate(*words, **how)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return one_sentence(result.exit_code, result.stdout, result.stderr)


def stats(*words: object, **how: Any) -> dict[str, Any]:
    """Return what the command's `--json -` prints."""
    result = generate(*words, "--json", "-", **how)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def copy_checkpoint(folder: Path, names: Sequence[str] | None = None) -> Path:
    """Copy the stand-in checkpoint, or only `names` of it."""
    folder.mkdir()
    for path in TINY.iterdir():
        if names is None or path.name in names:
            shutil.copyfile(path, folder / path.name)
    return folder
