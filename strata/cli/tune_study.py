"""The `strata tune` commands that look at stored studies and run nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata.cli.console import fail_cleanly, needs_extra, say, show_table
from strata.cli.tune_options import DATABASE_NAME, DEFAULT_OUT, DatabaseOption, StudyArgument

DATABASE = DEFAULT_OUT / DATABASE_NAME


@fail_cleanly()
def replay(
    study: StudyArgument,
    sampler: Annotated[
        list[str] | None,
        typer.Option(
            metavar="grid|random|tpe|cost-model",
            help="Whose order to replay; may be given again. Default: all but grid.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How often each, seeds 0 and up.")] = 20,
    arms: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many arms; default: the whole grid.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the curves: .svg or .png.")
    ] = None,
    db: DatabaseOption = DATABASE,
) -> None:
    """Run samplers against a measured grid, without a trial: best found and regret against arms."""
    from strata.cli.study_view import replay_table

    with needs_extra("strata tune replay"):
        from strata.tuner.replay import REPLAYED, RecordedGrid
        from strata.tuner.replay import replay as run_replay
        from strata.tuner.report.curves import check_picture, draw_replays
        from strata.tuner.store import open_database
    if out is not None:
        check_picture(out)
    with open_database(db, must_exist=True) as store:
        record = store.study(study)
        recorded = RecordedGrid.load(store, record)
    replays = [
        run_replay(recorded, name, seeds=range(seeds), max_arms=arms)
        for name in sampler or REPLAYED
    ]
    show_table(replay_table(replays, f"{record.study} ({record.name})"))
    if out is not None:
        draw_replays(replays, out)
        say(f"picture {out}")
