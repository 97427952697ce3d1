"""Commands that only read a trial database neither make one nor change it."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from strata.cli.main import app

GOLDEN = Path(__file__).parent.parent / "golden"
READERS = [
    "tune --list",
    "tune --show golden",
    "tune report golden --out {out}",
    "tune verdict golden",
    "tune compare golden golden",
    "tune costs golden",
    "tune replay golden --seeds 1",
    "tune export golden --jsonl {out}/t.jsonl",
    "tune doctor",
    "tune acceptance {out} --study golden",
    "policy export --out {out}/t.json",
    "model fit golden --out {out}/m.json",
    "model evaluate golden",
    "model predict golden",
]


def run(line: str, database: Path) -> Result:
    out = database.parent / "out"
    out.mkdir(exist_ok=True)
    (out / "prompt.txt").write_text("x")
    words = [word.format(out=out) for word in line.split()]
    return CliRunner().invoke(app, [*words, "--db", str(database)])


@pytest.mark.parametrize("line", READERS)
def test_a_path_that_is_not_there_is_refused_and_stays_so(line: str, tmp_path: Path) -> None:
    database = tmp_path / "no" / "t.duckdb"
    database.parent.mkdir()
    result = run(line, database)
    assert result.exit_code == 2
    assert result.stderr == f"error: no trial database at {database}; `strata tune` makes one\n"
    assert not database.exists()


@pytest.mark.parametrize("line", READERS)
def test_an_older_schema_stays_as_old_as_it_is(line: str, tmp_path: Path) -> None:
    """What cannot be done with so small a study is refused, but not by the database."""
    database = tmp_path / "t.duckdb"
    content = lzma.decompress((GOLDEN / "store-1.duckdb.xz").read_bytes())
    database.write_bytes(content)
    result = run(line, database)
    assert result.exit_code in (0, 2), result.output
    assert str(database) not in result.stderr
    assert database.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "t.duckdb"]
