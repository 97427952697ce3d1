"""Failures become one sentence and an exit code, in one place."""

from __future__ import annotations

import sys

import pytest
import typer

from strata.cli.console import fail_cleanly, needs_extra, say, warn
from strata.errors import CheckpointError, UsageError


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
