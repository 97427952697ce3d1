"""The `strata tune` commands that look at stored studies and run nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from strata.cli.console import fail_cleanly, needs_extra, note, say, show_table
from strata.cli.output_file import check_output_file
from strata.cli.tune_options import DATABASE_NAME, DEFAULT_OUT, DatabaseOption, StudyArgument

DATABASE = DEFAULT_OUT / DATABASE_NAME


@fail_cleanly()
def replay(
    study: StudyArgument,
    sampler: Annotated[
        list[str] | None,
        typer.Option(
            metavar="grid|random|tpe|gp|cost-model",
            help="Whose order to replay; may be given again.",
            show_default="random, tpe, cost-model",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How often each, seeds 0 and up.")] = 20,
    arms: Annotated[
        int | None,
        typer.Option(min=1, help="Stop after so many arms.", show_default="the whole grid"),
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
        check_output_file(out, "--out")
    with open_database(db, read_only=True) as store:
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


@fail_cleanly()
def verdict(study: StudyArgument, db: DatabaseOption = DATABASE) -> None:
    """Print better, worse, equivalent, undecided or no evidence for every entry, and figures."""
    from strata.cli import study_view as view

    with needs_extra("strata tune verdict"):
        from strata.tuner.store import open_database
        from strata.tuner.verdict import verdict_of
    with open_database(db, read_only=True) as store:
        record = store.study(study)
        found = verdict_of(store, record)
    say(f"study {record.study} ({record.name}), default ring {record.default_ring_cells} cells")
    show_table(view.entries_table(found))
    for line in found.reasons:
        say(line)
    show_table(view.candidates_table(found))
    say(view.rule_line(found.rule))
    if found.is_of_one_rule:
        places = ((e.tier_cells, e.mode, e.harmless) for e in found.entries if e.rivals)
        say(view.regression_line(places, found.rule))


@fail_cleanly()
def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="The study to compare with.")],
    second: Annotated[
        str, typer.Argument(metavar="B", help="A study of the same plan by another engine.")
    ],
    db: DatabaseOption = DATABASE,
) -> None:
    """Compare two versions of the engine on one plan: rounds/s of B over A, by passage and arm."""
    from strata.cli import study_view as view

    with needs_extra("strata tune compare"):
        from strata.tuner.store import open_database
        from strata.tuner.verdict import compare_studies
    with open_database(db, read_only=True) as store:
        one, other = store.study(first), store.study(second)
        found = compare_studies(store, one, other)
    say(f"A  {one.study} ({one.name}), engine {one.engine_version}, {one.created_at}")
    say(f"B  {other.study} ({other.name}), engine {other.engine_version}, {other.created_at}")
    show_table(view.changes_table(found))
    say(view.rule_line(found.rule))
    places = ((c.found.tier_cells, c.found.mode, c.harmless) for c in found.changes)
    say(view.regression_line(places, found.rule))
    if not found.one_machine:
        note("A and B were not measured by one machine, so the change may be the machine's")


@fail_cleanly()
def costs(
    study: StudyArgument,
    workload: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What drafting is worth on a stored workload instead."),
    ] = None,
    db: DatabaseOption = DATABASE,
) -> None:
    """Print what drafting costs and gives on each ring, and what prompts take.

    For studies whose plan asks for pairs of purpose break-even or prefill; a workload of `strata
    tune acceptance` is held against any study that ran with and without the drafter.
    """
    from strata.cli import cost_view as view

    with needs_extra("strata tune costs"):
        from strata.tuner import acceptance as measuring
        from strata.tuner.costs import draft_prices, prompt_times
        from strata.tuner.store import open_database
    with open_database(db, read_only=True) as store:
        record = store.study(study)
        head = (
            f"study {record.study} ({record.name}), default ring {record.default_ring_cells} cells"
        )
        if workload is not None:
            known = store.workload(workload)
            measuring.refuse_other_way(known, record)
            rates = measuring.by_depth(known.prompts, record.read_plan().grid.tiers)
            outlook = view.outlook_table(rates, measuring.prices_of(store, record))
            say(head)
            show_table(view.rates_table(rates))
            show_table(outlook)
            return
        times = prompt_times(store, record)
        priced = "break-even" in record.read_plan().measure.purposes
        prices = draft_prices(store, record) if priced or not times else []
    say(head)
    if prices:
        show_table(view.prices_table(prices))
    if times:
        show_table(view.prompts_table(times))
