"""A file that a user names lies in a folder that is there: every command refuses alike."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
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


COPY = "from strata.files import write_whole; from pathlib import Path; import sys; "
COPY += "print('before'); write_whole(Path(sys.argv[1]), b'data\\n')"


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
def test_an_open_file_is_written_to_by_its_number(name: str, tmp_path: Path) -> None:
    """A pipe without a name, and a file that stdout was sent to: behind what was said before."""
    (tmp_path / "link").symlink_to("/dev/stdout")
    command = [sys.executable, "-c", COPY, name]
    before = sorted(Path("/dev").iterdir())
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout == b"before\ndata\n"
    with (tmp_path / "out").open("wb") as out:
        subprocess.run(command, cwd=tmp_path, stdout=out, check=True)
    assert (tmp_path / "out").read_bytes() == b"before\ndata\n"
    assert sorted(Path("/dev").iterdir()) == before
    assert {one.name for one in tmp_path.iterdir()} == {"link", "out"}


def test_an_export_to_stdout_is_lines_alone(tmp_path: Path) -> None:
    lines = Path(__file__).parents[2] / "experiments" / "h200-first" / "trials.jsonl"
    main = "from strata.cli.main import main; main()"
    strata = [sys.executable, "-c", main, "tune"]
    db = ["--db", str(tmp_path / "t.duckdb")]
    subprocess.run([*strata, "import", str(lines), *db], check=True, capture_output=True)
    with (tmp_path / "out").open("wb") as out:
        words = [*strata, "export", "h200-first", "--jsonl", "/dev/stdout", *db]
        subprocess.run(words, check=True, stdout=out, stderr=subprocess.DEVNULL)
    found = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [one["record"].partition("/")[0] for one in found] == [
        "strata.study", *["strata.trial"] * 256
    ]  # fmt: skip
    assert not Path("/dev/stdout.manifest.json").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [("/dev/fd/997", "is not open"), ("/dev/fd/{}", "is open to be read alone"),
     ("socket", "is a socket")],
)  # fmt: skip
def test_what_cannot_be_written_to_is_refused_before_the_work(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as made, Path(os.devnull).open() as readable:
        made.bind("socket")
        line = ["generate", "x", "--json", name.format(readable.fileno())]
        result = CliRunner().invoke(app, line)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize("line", ["tune run-trials quick --jsonl", "tune export s --optuna"])
def test_what_is_read_again_is_no_stream(line: str) -> None:
    result = CliRunner().invoke(app, [*line.split(), os.devnull])
    assert result.exit_code == 2
    assert "is no plain file" in result.stderr


def test_a_report_makes_no_folder_that_was_named(tmp_path: Path) -> None:
    words = ["tune", "report", "s", "--out", str(tmp_path / "no" / "such")]
    result = CliRunner().invoke(app, [*words, "--db", str(tmp_path / "t.duckdb")])
    assert result.exit_code == 2
    assert "is no folder; make it, or name another" in result.stderr
    assert not list(tmp_path.iterdir())
