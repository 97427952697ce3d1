"""Failures become one sentence and an exit code, in one place."""

from __future__ import annotations

import dataclasses
import sys
import unicodedata

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from policy_samples import FINGERPRINT, PROVENANCE, make_table
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from strata.cli.console import fail_cleanly, needs_extra, note, say, show_table, warn
from strata.cli.policy import app
from strata.errors import CheckpointError, UsageError
from strata.policy import Declaration, save_table
from strata.printable import printable


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (CheckpointError("shard 2\nis [red]cut[/red]"), 2, "error: shard 2 is [red]cut[/red]\n"),
        (FileNotFoundError(2, "No such file", "a.txt"), 2, "error: a.txt: No such file\n"),
        (OSError(28, "No space left on device"), 2, "error: No space left on device\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_a_foreseen_failure_is_one_sentence(error, code, sentence, capsys):
    with pytest.raises(typer.Exit) as caught, fail_cleanly():
        raise error
    assert caught.value.exit_code == code
    assert capsys.readouterr() == ("", sentence)


def test_a_bug_keeps_its_traceback():
    for error in (ValueError("bug"), OSError("no number")):
        with pytest.raises(type(error)), fail_cleanly():
            raise error


def test_a_closed_pipe_ends_without_a_word(capfd, monkeypatch):
    with open(1, "w", closefd=False) as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(typer.Exit) as caught, fail_cleanly():
            raise BrokenPipeError(32, "Broken pipe")
    assert caught.value.exit_code == 141
    assert capfd.readouterr().err == ""


def test_long_sentences_and_markup_are_printed_as_they_are(capsys):
    say("[bold]" + "x" * 300)
    warn(["a\nb", "[c] :x:"])
    captured = capsys.readouterr()
    assert captured.out == "[bold]" + "x" * 300 + "\n"
    assert captured.err == "warning: a b\nwarning: [c] :x:\n"


def test_a_missing_extra_is_named():
    sentence = r"strata tune needs the extra .*pip install"
    with pytest.raises(UsageError, match=sentence), needs_extra("strata tune"):
        import strata_no_such_module  # noqa: F401


HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eA\ud800"
SPELT = r"\x1b[2J\x1b]0;owned\x07\x9b31m\u202eA\ud800"


@given(st.text(st.characters()), st.sampled_from(["", "\n\t"]))
def test_printed_text_holds_nothing_that_a_terminal_obeys(text, keep):
    told = printable(text, keep=keep)
    told.encode()  # no lone surrogate is left to end a command with a traceback
    left = {one for one in told if unicodedata.category(one)[0] == "C" or one in "\u2028\u202e"}
    assert {one for one in left if unicodedata.category(one) == "Cc"} <= set(keep)
    assert not left & {"\u2028", "\u202e", "\u2066"}
    assert printable(told, keep=keep) == told


def test_every_way_to_print_spells_out_what_a_terminal_would_obey(capsys):
    table = Table("device", "[b]as text[/b]")
    table.add_row(HOSTILE, Text("\x1b[1m[b]"))
    table.add_row("[bold]x", "a\nb")
    say(HOSTILE + "\n\tkept")
    note(HOSTILE)
    warn([HOSTILE])
    show_table(table)
    with pytest.raises(typer.Exit), fail_cleanly():
        raise UsageError(HOSTILE)
    captured = capsys.readouterr()
    assert captured.out.startswith(SPELT + "\n        kept\n")
    assert captured.err == f"{SPELT}\nwarning: {SPELT}\nerror: {SPELT}\n"
    assert captured.out.count(SPELT) == 2
    assert r"\x1b[1m[b]" in captured.out
    assert "[bold]x" in captured.out
    assert "\x1b" not in captured.out
    assert "\x9b" not in captured.out


def test_a_hostile_table_is_shown_and_compared_as_text(tmp_path):
    device = "A\x1b[2J\nmargin            99 %"
    hostile = make_table(
        fingerprint=dataclasses.replace(FINGERPRINT, device=device),
        provenance=PROVENANCE | {"note\x1b[1m": "\x1b]8;;x\x07"},
        declarations=(
            Declaration(
                field="device", value="\x1b[3m", reason="\x1b[4m", declared="2026-01-01T00:00:00Z"
            ),
        ),
    )
    first = save_table(hostile, tmp_path / "a.json")
    second = save_table(make_table(), tmp_path / "b.json")
    for words in (["show", str(first)], ["diff", str(first), str(second)]):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        assert r"A\x1b[2J\nmargin" in result.stdout
        assert "\x1b" not in result.stdout
        assert "\x07" not in result.stdout
