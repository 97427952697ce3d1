"""`strata model predict`: rounds/s and tok/s of sessions that were not measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli.console import fail_cleanly, needs_extra, note, say, show_table
from strata.cli.json_file import check_json_target, write_json
from strata.cli.model_chosen import Chosen
from strata.cli.tune_options import DATABASE_NAME, DEFAULT_OUT, DatabaseOption
from strata.config import MAX_DRAFTS
from strata.errors import UsageError
from strata.units import parse_bytes, parse_cells

if TYPE_CHECKING:
    import pandas as pd

    from strata.cli.model_grid import Scenario
    from strata.cli.model_ledger import Ledger
    from strata.models.cost_model import RingCostModel
    from strata.models.model_file import ModelFacts

DATABASE = DEFAULT_OUT / DATABASE_NAME
BUDGET = "--vram-budget"
ESTIMATE = "Estimate"

Depths = Annotated[
    list[str] | None,
    typer.Option(
        "--depth",
        metavar="CELLS",
        help="Prompt length; may be given again.",
        show_default="every measured tier",
    ),
]
Rings = Annotated[
    list[str] | None,
    typer.Option(
        "--ring", metavar="CELLS", help="A ring; may be given again.", show_default="all that fit"
    ),
]
Drafts = Annotated[
    list[int] | None,
    typer.Option(
        "--spec",
        min=0,
        max=MAX_DRAFTS,
        metavar="N",
        help="Drafts a round; may be given again.",
        show_default="as measured",
    ),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option("--model", metavar="FOLDER", help="The checkpoint.", show_default="the study's"),
]


@fail_cleanly()
def predict(
    source: Annotated[
        str | None,
        typer.Argument(metavar="STUDY|FILE", help="A stored study, or a file of strata model fit."),
    ] = None,
    depth: Depths = None,
    ring: Rings = None,
    spec: Drafts = None,
    vram_budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Device memory for weights, ring and experts, like 64MiB.",
            show_default="the study's",
        ),
    ] = None,
    max_new: Annotated[
        int | None, typer.Option(min=1, help="New tokens.", show_default="as measured")
    ] = None,
    model: Checkpoint = None,
    device_profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Estimate for a device that was not measured: h200, or a TOML or JSON file.",
            rich_help_panel=ESTIMATE,
        ),
    ] = None,
    kv_select: Annotated[
        str | None,
        typer.Option(
            metavar="CELLS|depth/N",
            help="Cells a row reads; 0 is all.",
            show_default="the study's, else 0",
            rich_help_panel=ESTIMATE,
        ),
    ] = None,
    mtp_window: Annotated[
        str | None,
        typer.Option(
            metavar="CELLS|auto",
            help="Cells the drafter reads.",
            show_default="the study's, else auto",
            rich_help_panel=ESTIMATE,
        ),
    ] = None,
    accepted: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Share of drafts accepted.",
            show_default="the study's, else that of the bundled model",
            rich_help_panel=ESTIMATE,
        ),
    ] = None,
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

    With --device-profile: a table of the rings that ought to be fastest on that device, from its
    bandwidths and memory and the checkpoint's sizes. It is an estimate, and no session obeys it.
    """
    from strata.cli import model_view as view

    check_json_target(json)
    chosen = Chosen(
        depths=cells("--depth", depth),
        rings=cells("--ring", ring),
        drafts=tuple(spec or ()),
        budget_bytes=None if vram_budget is None else parse_bytes(vram_budget, name=BUDGET),
        max_new=max_new,
        checkpoint=model,
    )
    known = None if source is None else _model(source, db)
    if device_profile is not None:
        from strata.cli.model_estimate import estimate

        estimate(
            device_profile,
            chosen,
            known=known,
            select=kv_select,
            window=mtp_window,
            accepted=accepted,
            json=json,
        )
        return
    if known is None:
        raise UsageError("name a study or a file of strata model fit, or give --device-profile")
    if any(value is not None for value in (kv_select, mtp_window, accepted)):
        raise UsageError(
            "--kv-select, --mtp-window and --accepted are the study's own; they go with "
            "--device-profile"
        )
    found = _predicted(*known, chosen)
    cost, facts = known
    if json is not None:
        sessions = view.records(found)
        write_json(json, {"study": facts.study, "name": facts.name, "sessions": sessions})
        if json == "-":
            return
    say(f"study {facts.study} ({facts.name}), {facts.fingerprint.device}")
    show_table(view.predictions_table(found, cost.confidence))
    note("a prediction is no verdict: strata tune measures, and only its table is obeyed")


def _predicted(cost: RingCostModel, facts: ModelFacts, chosen: Chosen) -> pd.DataFrame:
    from strata.cli.model_grid import Scenario, lay_grid

    scenario = Scenario(
        conditions=facts.fingerprint,
        max_new=chosen.max_new or facts.max_new,
        default_ring_cells=facts.default_ring_cells,
        budget_bytes=chosen.budget_bytes or facts.fingerprint.vram_budget_bytes,
    )
    grid = lay_grid(
        scenario,
        _ledger(scenario, chosen.checkpoint or Path(facts.checkpoint), facts),
        depths=chosen.depths or facts.tiers_cells,
        drafts=chosen.drafts or _measured_drafts(cost),
        rings=chosen.rings,
    )
    return grid.join(cost.predict_frame(grid))


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
    with open_database(db, read_only=True) as store:
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
