"""Tables on narrow terminals: no number is cut, whatever the width, in any of them."""

from __future__ import annotations

import lzma
import os
import re
import subprocess
from pathlib import Path

import pytest
from generate_samples import COMMAND
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from typer.testing import CliRunner

import strata
from strata.cli import tables
from strata.cli.main import app
from tests.table_words import check_layout

ROOT = Path(strata.__file__).parent
GOLDEN = Path(__file__).parent.parent / "golden"
SEED = Path(__file__).parents[2] / "data" / "seed" / "decode_by_ring.csv"
LINES = [
    "tune --list --db {db}",
    "tune --show golden --db {db}",
    "tune verdict golden --db {db}",
    "tune replay golden --seeds 1 --db {db}",
    "tune doctor --db {db}",
    "model evaluate golden --halvings 2 --db {db}",
    "model predict golden --db {db}",
    "policy show {golden}/ring-policy-1.json",
    "policy diff {golden}/ring-policy-1.json {policies}/h200-own-72mib.json",
    "policy backtest {seed}",
]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[Table]:
    """Return the tables that commands print of real studies, tables and figures."""
    place = tmp_path_factory.mktemp("tables")
    db = place / "t.duckdb"
    db.write_bytes(lzma.decompress((GOLDEN / "store-4.duckdb.xz").read_bytes()))
    names = {"db": db, "golden": GOLDEN, "seed": SEED, "policies": ROOT / "data" / "policies"}
    found: list[Table] = []
    with pytest.MonkeyPatch.context() as patch:
        inner = tables.lay_out
        patch.setattr(tables, "lay_out", lambda table, columns: found.append(table) or inner(
            table, columns))  # fmt: skip
        for line in LINES:
            before = len(found)
            CliRunner().invoke(app, [word.format(**names) for word in line.split()])
            assert len(found) > before, line
    return found


def test_no_word_is_cut_at_any_width(printed: list[Table]) -> None:
    for table in printed:
        for columns in range(20, 201):
            check_layout(table, columns)


def test_a_measured_table_stays_a_table_at_80_columns(printed: list[Table]) -> None:
    lines = next(check_layout(one, 80) for one in printed if str(one.title).startswith("measured"))
    assert any(re.match(r"tier +drafter +ring", line) for line in lines)
    assert len(lines) < 25


@given(
    rows=st.lists(st.lists(st.text(max_size=12), min_size=3, max_size=3), max_size=4),
    heads=st.lists(st.text(max_size=20), min_size=3, max_size=3),
    columns=st.integers(0, 120),
)
def test_any_text_in_any_width(rows: list[list[str]], heads: list[str], columns: int) -> None:
    """Wide characters, escapes and markup included."""
    table = Table(*heads, title="t")
    for row in rows:
        table.add_row(*row)
    check_layout(table, columns)


def test_markup_and_escapes_are_shown_not_obeyed() -> None:
    table = Table("gain [interval]", "device")
    table.add_row("[red]1[/red]", "H200\x1b[31m\x07")
    text = "\n".join(tables.lay_out(table, None))
    assert "gain [interval]" in text
    assert "[red]1[/red]" in text
    assert r"H200\x1b[31m\x07" in text


def test_every_table_goes_through_the_one_that_lays_it_out() -> None:
    """A table printed by rich itself would be cut on a narrow terminal."""
    builders = re.compile(r"-> (?:\w+\.)?Table:|\bTable\(")
    for path in (ROOT / "cli").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if builders.search(source):
            assert not re.search(r"\b(?:out|err|console)\.print\(", source), path


@pytest.mark.parametrize("columns", ["0", "-3", "wide", "24", "80", None])
def test_in_a_pipe_there_is_no_escape_and_columns_is_obeyed(columns: str | None) -> None:
    assert COMMAND is not None
    environ = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environ |= {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    environ |= {} if columns is None else {"COLUMNS": columns}
    words = [COMMAND, "policy", "show", str(GOLDEN / "ring-policy-1.json")]
    done = subprocess.run(words, capture_output=True, text=True, env=environ, check=True)
    assert "\x1b" not in done.stdout
    table = done.stdout.partition("Holm over 2 tests\n")[2]
    assert "+25.1%" in table
    width = max(map(len, table.splitlines()))
    assert width <= int(columns) if columns in ("24", "80") else width > 70
