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
from strata.cli.config_file import read_defaults
from strata.cli.console import (
    EXIT_PIPE_CLOSED,
    drop_unread,
    fail_cleanly,
    note,
    prepare,
    say,
)
from strata.env import misspelt_variables
from strata.errors import EXIT_BAD_INPUT

app = typer.Typer(
    name="strata",
    help="Run a long-context language model with a tuned K/V ring in front of host memory. "
    "Defaults of switches may stand in strata.toml: a table a command, a key a switch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("generate", epilog=generate.EPILOG)(generate.generate)
app.add_typer(tune.app)
app.add_typer(model.app)
app.add_typer(policy.app)
app.add_typer(bench.app)


def _version(asked: bool) -> None:
    if not asked:
        return
    with fail_cleanly():
        from importlib.metadata import PackageNotFoundError, version

        import torch

        from strata.device import device_name, resolve_device
        from strata.tuner.environment import engine_commit, engine_version

        device = resolve_device("auto")
        try:
            triton = f"triton {version('triton')}"
        except PackageNotFoundError:
            triton = "no triton"
        say(f"strata {__version__}, build {engine_version().partition('+')[2]}, "
            f"{f'commit {commit}' if (commit := engine_commit()) else 'a wheel'}")  # fmt: skip
        say(f"device {device.type}: {device_name(device)}")
        say(f"torch {torch.__version__}, {triton}")
    raise typer.Exit


@app.callback()
def _root(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_version,
            is_eager=True,
            help="Print the version with its build, the device, and the versions of its libraries.",
        ),
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="strata.toml here, and in $XDG_CONFIG_HOME/strata",
            help="Take the defaults of any switch of any command from this TOML file.",
        ),
    ] = None,
) -> None:
    with fail_cleanly():
        found = read_defaults(ctx.command, ctx.invoked_subcommand, config, os.environ)
    ctx.default_map = found.map
    prepare([*misspelt_variables(os.environ), *found.warnings], found.places)


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
