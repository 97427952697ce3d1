"""`strata model`: fit the cost model to a study, judge it, and ask it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata.cli import model_predict
from strata.cli.console import fail_cleanly, needs_extra, say, show_table
from strata.cli.json_file import check_json_target, write_json
from strata.cli.model_fit import check_trials, fit_study
from strata.cli.output_file import check_output_file
from strata.cli.tune_options import DATABASE_NAME, DEFAULT_OUT, DatabaseOption, StudyArgument

DATABASE = DEFAULT_OUT / DATABASE_NAME
MODEL_NAME = "cost-model.json"

Confidence = Annotated[
    float,
    typer.Option(metavar="C", help="The share of new passages that an interval should hold."),
]
JsonOption = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE|-", help="Write the result as JSON; - is stdout."),
]

app = typer.Typer(
    name="model",
    help="Fit the cost model to a study, judge it by what it was not shown, and ask it.",
    no_args_is_help=True,
)
app.command("predict", epilog="Example: strata model predict quick --depth 2K --spec 0 --spec 1")(
    model_predict.predict
)


@app.command(epilog="Example: strata model fit quick --out cost-model.json")
@fail_cleanly()
def fit(
    study: StudyArgument,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Where to.", show_default=f"{MODEL_NAME} beside its report"
        ),
    ] = None,
    confidence: Confidence = 0.9,
    db: DatabaseOption = DATABASE,
) -> None:
    """Fit the cost model to a stored study and write its numbers as JSON."""
    from strata.cli import model_view as view

    if out is not None:
        check_output_file(out, "--out")
    with needs_extra("strata model fit"):
        from strata.models.model_file import save_model
        from strata.tuner.drive import study_folder
        from strata.tuner.store import open_database
    with open_database(db, read_only=True) as store:
        record = store.study(study)
        model, facts = fit_study(store, record, confidence)
    path = out or study_folder(db.parent, record) / MODEL_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    save_model(model, facts, path)
    say(f"study {record.study} ({record.name}), {facts.fingerprint.device}")
    show_table(view.prices_table(model))
    for line in view.fitted_lines(model):
        say(line)
    say(str(path))


@app.command(epilog="Example: strata model evaluate quick --halvings 50 --json -")
@fail_cleanly()
def evaluate(
    study: StudyArgument,
    confidence: Confidence = 0.9,
    halvings: Annotated[
        int, typer.Option(min=1, help="Random halvings of the passages behind the regret.")
    ] = 20,
    json: JsonOption = None,
    db: DatabaseOption = DATABASE,
) -> None:
    """Judge the model by depths, rings and passages that it was not shown, beside simpler ones.

    And the policies: what each loses on passages that it was not shown, and the learned table
    beside each of the others.
    """
    from strata.cli import model_view as view
    from strata.cli import rival_view

    check_json_target(json)
    with needs_extra("strata model evaluate"):
        from strata.models.judgement import judge_model
        from strata.tuner.conclude import rule_of
        from strata.tuner.evidence import evidence_of
        from strata.tuner.store import open_database
    with open_database(db, read_only=True) as store:
        record = store.study(study)
        frame = evidence_of(store, record)
    check_trials(frame, record, confidence)
    found = judge_model(
        frame, rule_of(record), record.default_ring_cells, confidence=confidence, halvings=halvings
    )
    if json is not None:
        write_json(json, {"study": record.study, "name": record.name, **found.to_json()})
        if json == "-":
            return
    say(f"study {record.study} ({record.name}), default ring {record.default_ring_cells} cells")
    show_table(view.errors_table(found))
    for line in view.coverage_lines(found):
        say(line)
    show_table(view.losses_table(found))
    show_table(rival_view.rivals_table(found.rivalry))
    show_table(rival_view.entries_table(found.rivalry))
    for line in rival_view.rivalry_lines(found.rivalry):
        say(line)
