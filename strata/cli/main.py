"""The `strata` command: one app, one file a verb."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from strata import __version__
from strata.cli import bench, generate, model, policy, tune
from strata.cli.console import EXIT_PIPE_CLOSED, drop_unread, note, say
from strata.errors import EXIT_BAD_INPUT

app = typer.Typer(
    name="strata",
    help="Run a long-context language model with a tuned K/V ring in front of host memory.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("generate", epilog=generate.EPILOG)(generate.generate)
app.add_typer(tune.app)
app.add_typer(model.app)
app.add_typer(policy.app)
app.add_typer(bench.app)


def _version(asked: bool) -> None:
    if asked:
        say(f"strata {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line."""
    # Where a shell closed a stream (`>&-`) there is none; what is printed then goes nowhere.
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    encoding = None if os.environ.get("PYTHONIOENCODING") else "utf-8"
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):  # whatever the locale, unless the user says so
            stream.reconfigure(encoding=encoding, errors=errors)
    try:
        _run()
    except BrokenPipeError:
        drop_unread()
        sys.exit(EXIT_PIPE_CLOSED)
    except OSError as error:  # the parser's own pages: commands answer for themselves
        if error.strerror is None:
            raise
        note(f"error: {error.strerror}")
        sys.exit(EXIT_BAD_INPUT)


def _run() -> None:
    """Run the app and print what it left to print; a closed pipe is raised, whoever met it."""
    try:
        app()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich and typer make it an exit code 1
            raise end.__context__ from None
        raise
    finally:
        sys.stdout.flush()
