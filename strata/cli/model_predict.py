"""`strata model predict`: rounds/s and tok/s of sessions that were not measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli import session_options as opt
from strata.cli.console import fail_cleanly, needs_extra, note, say, show_table
from strata.cli.json_file import check_json_target, write_json
from strata.cli.tune_options import DATABASE_NAME, DEFAULT_OUT, DatabaseOption
from strata.config import MAX_DRAFTS
from strata.errors import UsageError
from strata.units import parse_bytes, parse_cells

if TYPE_CHECKING:
    from strata.cli.model_grid import Scenario
    from strata.cli.model_ledger import Ledger
    from strata.models.cost_model import RingCostModel
    from strata.models.model_file import ModelFacts

DATABASE = DEFAULT_OUT / DATABASE_NAME

Depths = Annotated[
    list[str] | None,
    typer.Option("--depth", metavar="CELLS", help="Prompt length; may be given again."),
]
Rings = Annotated[
    list[str] | None,
    typer.Option(
        "--ring", metavar="CELLS", help="A ring; may be given again. Default: all that fit."
    ),
]
Drafts = Annotated[
    list[int] | None,
    typer.Option(
        "--spec",
        min=0,
        max=MAX_DRAFTS,
        metavar="N",
        help="Drafts a round; may be given again. Default: as measured.",
    ),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option("--model", metavar="FOLDER", help="The checkpoint; default: the study's."),
]


@fail_cleanly()
def predict(
    source: Annotated[
        str,
        typer.Argument(metavar="STUDY|FILE", help="A stored study, or a file of strata model fit."),
    ],
    depth: Depths = None,
    ring: Rings = None,
    spec: Drafts = None,
    vram_budget: opt.VramBudget = None,
    max_new: Annotated[
        int | None, typer.Option(min=1, help="New tokens; default: as measured.")
    ] = None,
    model: Checkpoint = None,
    json: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE|-", help="Write the result as JSON; - is stdout."),
    ] = None,
    db: DatabaseOption = DATABASE,
) -> None:
    """Predict rounds/s and tok/s by depth, drafts and ring, with intervals.

    Without --depth, --spec or --ring: every measured tier, the drafts that were measured, and
    every ring from the minimum to the largest that the memory budget holds by the engine's own
    ledger. Outside of what was measured the answer is "no evidence" and no number.
    """
    from strata.cli import model_view as view

    check_json_target(json)
    with needs_extra("strata model predict"):
        from strata.cli.model_grid import Scenario, lay_grid
    cost, facts = _model(source, db)
    budget = facts.fingerprint.vram_budget_bytes
    if vram_budget is not None:
        budget = parse_bytes(vram_budget, name="--vram-budget")
    scenario = Scenario(
        conditions=facts.fingerprint,
        max_new=max_new or facts.max_new,
        default_ring_cells=facts.default_ring_cells,
        budget_bytes=budget,
    )
    grid = lay_grid(
        scenario,
        _ledger(scenario, model or Path(facts.checkpoint), facts),
        depths=cells("--depth", depth) or facts.tiers_cells,
        drafts=spec or _measured_drafts(cost),
        rings=cells("--ring", ring),
    )
    found = grid.join(cost.predict_frame(grid))
    if json is not None:
        write_json(
            json, {"study": facts.study, "name": facts.name, "sessions": view.records(found)}
        )
        if json == "-":
            return
    say(f"study {facts.study} ({facts.name}), {facts.fingerprint.device}")
    show_table(view.predictions_table(found, cost.confidence))
    note("a prediction is no verdict: strata tune measures, and only its table is obeyed")


def cells(switch: str, texts: list[str] | None) -> list[int]:
    """Return the numbers of cells behind a switch that may be given again."""
    found = [parse_cells(text, name=switch) for text in texts or ()]
    if wrong := [number for number in found if number <= 0]:
        raise UsageError(f"{switch}: {wrong[0]} is not above zero")
    return found


def _model(source: str, db: Path) -> tuple[RingCostModel, ModelFacts]:
    """Return a saved model where `source` is a file, else the one fitted to a stored study."""
    with needs_extra("strata model predict"):
        from strata.cli.model_fit import fit_study
        from strata.models.model_file import load_model_file
    if source.endswith(".json") or Path(source).is_file():
        return load_model_file(Path(source))
    with needs_extra("strata model predict"):
        from strata.tuner.store import open_database
    with open_database(db, must_exist=True) as store:
        return fit_study(store, store.study(source), 0.9)


def _measured_drafts(cost: RingCostModel) -> list[int]:
    return sorted({int(most) for seen in cost.measured_.values() for most in seen["drafts"]})


def _ledger(scenario: Scenario, folder: Path, facts: ModelFacts) -> Ledger | None:
    """Return the ledger of the measured checkpoint, None where there is no budget to keep to."""
    from strata.cli.model_ledger import Ledger, checkpoint_folder

    if scenario.budget_bytes is None:
        return None
    ledger = Ledger.open(checkpoint_folder(str(folder)), facts.fingerprint.kv_dtype)
    if ledger.model.model_hash != facts.fingerprint.model_hash:
        raise UsageError(
            f"--model: {ledger.model.folder} is model {ledger.model.model_hash[:12]}, and the "
            f"study measured {facts.fingerprint.model_hash[:12]}; name the folder of that one"
        )
    return ledger
