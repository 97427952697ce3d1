"""Where the commands print, and the one place where a failure becomes a sentence.

`out` is for what was asked for, `err` for everything else, so that a pipe gets only the former.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from strata.cli import tables
from strata.cli.interrupts import EXIT_INTERRUPTED, holding, raising
from strata.cli.tables import plain
from strata.errors import EXIT_BAD_INPUT, StrataError, UsageError

EXIT_PIPE_CLOSED = 141

EXTRAS = {"ray": "ray"} | dict.fromkeys(
    ("duckdb", "jinja2", "matplotlib", "optuna", "pandas", "pynvml", "scipy", "sklearn"), "tune"
)
"""Libraries that only an extra brings, and which one."""

out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)

_prepared: dict[str, Any] = {}


def say(text: str) -> None:
    """Print `text` to stdout as it is: no markup, no wrapping, control characters spelt out."""
    out.print(plain(text), markup=False, soft_wrap=True)


def note(text: str) -> None:
    """Print `text` to stderr as it is; not where the command is to be quiet (`err.quiet`)."""
    err.print(plain(text), markup=False, soft_wrap=True)


def hush(asked: bool) -> bool:
    """Let `note` and `warn` print nothing where `--quiet` asks for it; errors are still said."""
    err.quiet = asked
    return asked


def prepare(warnings: Iterable[str], origins: Mapping[str, str]) -> None:
    """Keep for the command that follows what it is to warn of, and which file gave its switches.

    Only when it begins is it known whether it is to be quiet.
    """
    _prepared.clear()
    _prepared.update(warnings=list(warnings), origins=dict(origins))
    err.quiet = False


def show_table(table: Table, to: Console = out) -> None:
    """Print `table`, to stdout unless said otherwise, and as wide as it likes into a pipe.

    COLUMNS limits it there too. A table holds no escape sequence: not all that look like terminals
    are, and what is copied out of one is to be plain.
    """
    columns = os.environ.get("COLUMNS", "")  # asked here: a console keeps what it began with
    room = int(columns) if columns.isdecimal() else to.width if to.file.isatty() else None
    for line in tables.lay_out(table, room):
        to.print(line, markup=False, soft_wrap=True)


def warn(warnings: Iterable[str]) -> None:
    """Print each warning to stderr, one line each."""
    for warning in warnings:
        note(f"warning: {_one_line(warning)}")


@contextmanager
def fail_cleanly() -> Iterator[None]:
    """Turn a foreseen failure inside into one sentence on stderr and an exit code.

    A StrataError exits with its own code, 2 but for a self-check that failed (1); a file that
    the system refuses to read or write with 2; Ctrl-C with 130; a reader that closed the pipe
    with 141 and no word. Anything else is a bug and keeps its traceback. Serves as
    ``with fail_cleanly():`` and as the decorator ``@fail_cleanly()``.
    """
    try:
        with raising():
            warn(_prepared.pop("warnings", ()))
            yield
    except StrataError as error:
        _say_error(_one_line(str(error)))
        raise typer.Exit(error.exit_code) from error
    except ImportError as error:
        # A command that needs a library of an extra may meet it late, wherever it is imported.
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        note(f"error: this needs an extra (no module {error.name}): pip install 'strata[{extra}]'")
        raise typer.Exit(EXIT_BAD_INPUT) from error
    except BrokenPipeError as error:
        drop_unread()
        raise typer.Exit(EXIT_PIPE_CLOSED) from error
    except OSError as error:
        if error.strerror is None:
            raise
        place = f"{error.filename}: " if error.filename is not None else ""
        _say_error(f"{place}{error.strerror}")
        raise typer.Exit(EXIT_BAD_INPUT) from error
    except KeyboardInterrupt as error:
        err.quiet = False
        note("interrupted")
        raise typer.Exit(EXIT_INTERRUPTED) from error
    finally:
        err.quiet = False


def _say_error(sentence: str) -> None:
    """Print an error, with the file that gave the switch it names, where nobody typed it."""
    err.quiet = False
    switch = sentence.partition(":")[0]
    file = _prepared.get("origins", {}).get(switch)
    if file is not None and not any(word.partition("=")[0] == switch for word in sys.argv):
        sentence = f"{file}: {sentence}"
    note(f"error: {sentence}")


def drop_unread() -> None:
    """Let what nobody reads go nowhere, or the interpreter would complain of it at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def end_on_sigterm() -> Iterator[None]:
    """Answer SIGTERM like Ctrl-C inside: a cluster's scheduler sends it before it kills."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # no other thread may say what a signal does
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with holding():
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def needs_extra(command: str) -> Iterator[None]:
    """Turn an ImportError inside into the sentence that says which extra `command` needs."""
    try:
        yield
    except ImportError as error:
        missing = error.name or str(error)
        raise UsageError(
            f"{command} needs the extra (no module {missing}): pip install 'strata[tune]'"
        ) from error


def _one_line(text: str) -> str:
    return " ".join(text.split())
