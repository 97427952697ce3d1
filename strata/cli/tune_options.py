"""Arguments and options that the `strata tune` commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from strata.cli.completion import plans

DEFAULT_OUT = Path("runs")
DATABASE_NAME = "strata.duckdb"

PlanArgument = Annotated[
    str,
    typer.Argument(
        metavar="PLAN", autocompletion=plans, help="A built-in plan (quick) or a TOML file."
    ),
]
StudyArgument = Annotated[
    str, typer.Argument(metavar="STUDY", help="A study's key, the start of one, or its name.")
]
OutOption = Annotated[Path, typer.Option(help="Folder for the database, tables and reports.")]
DbOption = Annotated[
    Path | None, typer.Option(help="The trial database.", show_default=f"{DATABASE_NAME} in --out")
]
DatabaseOption = Annotated[Path, typer.Option("--db", metavar="FILE", help="The trial database.")]
ModelOption = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="A checkpoint.", show_default="the plan's")
]
ModesOption = Annotated[
    str | None,
    typer.Option(
        metavar="off|on|off,on",
        help="Without the drafter, with it, or both.",
        show_default="the plan's",
    ),
]
RetryOption = Annotated[
    Literal["failed"] | None,
    typer.Option(
        metavar="failed",
        help="Go on with a study and measure the pairs that failed again; both tries are kept.",
    ),
]
SamplerOption = Annotated[
    str | None,
    typer.Option(
        metavar="grid|random|tpe|gp|cost-model",
        help="An order of the arms.",
        show_default="the plan's",
    ),
]
WorkersOption = Annotated[
    str,
    typer.Option(
        metavar="N|ray|ray:N",
        help="Who measures: so many workers here, a GPU each, or those of the Ray cluster that "
        "runs here or that RAY_ADDRESS names: one for each GPU, or each node where there is none.",
    ),
]
IsolationOption = Annotated[
    str,
    typer.Option(
        metavar="process|worker",
        help="A process for each pair, or one for all pairs of a worker: it loads the model once.",
    ),
]
DeviceOption = Annotated[str, typer.Option(metavar="auto|cpu|cuda|cuda:N", help="Where to run.")]
