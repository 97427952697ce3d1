"""The `strata` command: one app, one file a verb."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from strata import __version__
from strata.cli import bench, generate, model, policy, tune
from strata.cli.console import say

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
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where the terminal is not UTF-8
    app()
