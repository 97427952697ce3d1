"""Arguments and options that the `strata tune` commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_OUT = Path("runs")
DATABASE_NAME = "strata.duckdb"

PlanArgument = Annotated[
    str, typer.Argument(metavar="PLAN", help="A built-in plan (quick) or a TOML file.")
]
StudyArgument = Annotated[
    str, typer.Argument(metavar="STUDY", help="A study's key, the start of one, or its name.")
]
OutOption = Annotated[Path, typer.Option(help="Folder for the database, tables and reports.")]
DbOption = Annotated[
    Path | None, typer.Option(help="The trial database; default: strata.duckdb in --out.")
]
DatabaseOption = Annotated[Path, typer.Option("--db", metavar="FILE", help="The trial database.")]
ModelOption = Annotated[
    str | None, typer.Option(metavar="FOLDER", help="A checkpoint in place of the plan's.")
]
SamplerOption = Annotated[
    str | None,
    typer.Option(
        metavar="grid|random|tpe|gp|cost-model", help="An order of the arms in place of the plan's."
    ),
]
DeviceOption = Annotated[str, typer.Option(metavar="auto|cpu|cuda|cuda:N", help="Where to run.")]
