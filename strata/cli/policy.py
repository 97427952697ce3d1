"""`strata policy`: look at policy tables, ask what a session would decide, judge the rules."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli import policy_tables
from strata.cli import session_options as opt
from strata.cli.completion import policies
from strata.cli.console import fail_cleanly, needs_extra, note, say, show_table, warn
from strata.cli.output_file import check_output_file
from strata.cli.policy_view import (
    backtest_notes,
    backtest_table,
    decision_reasons,
    table_entries,
    table_facts,
)
from strata.cli.tune_options import DATABASE_NAME, DEFAULT_OUT, DeviceOption
from strata.config import DEFAULT_MAX_NEW, PAGE_CELLS
from strata.errors import TableError, UsageError
from strata.openmp import calm
from strata.policy import check_policy, load_table, parse_resident, save_table, user_folder
from strata.policy.table_file import read_document
from strata.units import parse_cells

if TYPE_CHECKING:
    from strata.tuner.store import TrialStore

app = typer.Typer(
    name="policy",
    help="Show, validate, compare, join, explain, export, check and backtest the ring policies.",
    no_args_is_help=True,
)
app.command("diff", epilog="Example: strata policy diff old.json new.json")(policy_tables.diff)
app.command("merge", epilog="Example: strata policy merge a.json b.json --newest --out both.json")(
    policy_tables.merge
)
app.command("declare", epilog=policy_tables.DECLARE_EPILOG)(policy_tables.declare_)
app.command("check", epilog="Example: strata policy check ring-policy.json --tier 4K --entries 1")(
    policy_tables.check
)

TableFile = Annotated[Path, typer.Argument(metavar="FILE", help="A policy table (JSON).")]


@app.command(epilog="Example: strata policy show runs/ring-policy.json")
@fail_cleanly()
def show(file: TableFile) -> None:
    """Print a policy table: its conditions, where it comes from, and every entry."""
    table = load_table(file)
    for name, value in table_facts(table):
        say(f"{name:<18}{value}")
    show_table(table_entries(table))


@app.command(epilog="Example: strata policy validate runs/ring-policy.json")
@fail_cleanly()
def validate(file: TableFile) -> None:
    """Check a policy table against its published JSON Schema, its hash and its own rules."""
    from strata.policy.schema import check_schema

    table = load_table(file)
    try:
        check_schema(read_document(file))
    except TableError as error:
        raise TableError(f"policy table {file}: {error}") from error
    say(f"{file}: valid, {len(table.tiers)} tiers, {len(table.entries)} entries")


@app.command(
    epilog="Example: strata policy explain --policy adapt --depth 128K --kv-resident 49152"
)
@fail_cleanly()
def explain(
    depth: Annotated[str, typer.Option(metavar="CELLS", help="Prompt length: 131072 or 128K.")],
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            "--kv-ring-policy",
            metavar="NAME",
            autocompletion=policies,
            help="fixed, depth, adapt or learned.",
            show_default="STRATA_KV_RING_POLICY, else fixed",
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            "--kv-ring-table",
            metavar="FILE",
            help="Policy table for `learned`.",
            show_default="STRATA_KV_RING_TABLE, else an exported or shipped one that applies",
        ),
    ] = None,
    max_new: Annotated[int, typer.Option(help="New tokens at most.")] = DEFAULT_MAX_NEW,
    model: Annotated[
        Path | None, typer.Option(help="Checkpoint folder.", show_default="the bundled model")
    ] = None,
    device: DeviceOption = "auto",
    threads: Annotated[
        int | None, typer.Option(help="CPU threads that decode.", show_default="1")
    ] = None,
    kv_resident: opt.KvResident = None,
    kv_ring_default: opt.KvRingDefault = None,
    kv_evict: opt.KvEvict = None,
    kv_select: opt.KvSelect = opt.DEFAULT_SELECT,
    kv_page: opt.KvPage = PAGE_CELLS,
    vram_budget: opt.VramBudget = None,
    max_context: opt.MaxContext = None,
    spec: opt.Spec = None,
    no_mtp: opt.NoMtp = False,
    mtp_window: opt.MtpWindow = opt.AUTO,
) -> None:
    """Print the ring that a session would get, with the line it would print, and why.

    It loads the model and asks the function that a session asks, on this device; nothing is
    reserved and nothing is run.
    """
    config = opt.session_config(
        kv_resident=kv_resident,
        kv_ring_default=kv_ring_default,
        kv_ring_policy=policy,
        kv_ring_table=table,
        kv_evict=kv_evict,
        kv_select=kv_select,
        kv_page=kv_page,
        vram_budget=vram_budget,
        max_context=max_context,
        spec=spec,
        no_mtp=no_mtp,
        mtp_window=mtp_window,
    )
    config.check()
    cells = parse_cells(depth, name="--depth")
    if cells < 1:
        raise UsageError(f"--depth: {cells} cells are no prompt; name at least one")
    if max_new < 1:
        raise UsageError(f"--max-new: {max_new} is not a number of new tokens from 1 up")
    check_policy(policy=config.policy, table=config.table, environ=os.environ)

    calm()
    from strata.device import set_decode_threads
    from strata.lm import bundled_model_path, load_model
    from strata.switches import plan_session

    warn(set_decode_threads(threads))
    loaded = load_model(model or bundled_model_path(), device)
    plan = plan_session(loaded, config, prompt_cells=cells, max_new=max_new, environ=os.environ)
    warn([*loaded.config.warnings, *plan.warnings])
    say(plan.decision.log_line)
    for name, value in decision_reasons(plan):
        say(f"  {name:<13}{value}")


@app.command(epilog="Example: strata policy export --study quick --out ring-policy.json")
@fail_cleanly()
def export(
    db: Annotated[
        Path, typer.Option(metavar="FILE", help="A trial database of strata tune.")
    ] = DEFAULT_OUT / DATABASE_NAME,
    study: Annotated[
        str | None,
        typer.Option(metavar="KEY|NAME", help="The study.", show_default="the only one"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Where to.",
            show_default="where sessions look by themselves",
        ),
    ] = None,
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Judge what there is of a plan that is not measured whole."),
    ] = False,
) -> None:
    """Fit a stored study and write its policy table.

    A study that lacks pairs of its plan is undecided and gives no table, unless --partial asks.
    """
    if output is not None:
        check_output_file(output, "--out")
    with needs_extra("strata policy export"):
        from strata.tuner.conclude import NOTHING_TO_USE, conclude, usage_words
        from strata.tuner.evidence import refuse_partial
        from strata.tuner.store import open_database

        with open_database(db, read_only=True) as store:
            record = store.study(study or _only_study(store))
            if not partial:
                refuse_partial(store, record)
            table = conclude(store, record, partial=partial)
    path = save_table(table, output or user_folder(os.environ) / f"{record.study}.json")
    show_table(table_entries(table))
    say(str(path))
    note(usage_words(record, table, str(path)) or NOTHING_TO_USE)


@app.command(
    epilog="Example: strata policy backtest data/seed/decode_by_ring.csv --kv-resident 49152"
)
@fail_cleanly()
def backtest(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A CSV of published rows.")],
    kv_resident: Annotated[
        str | None,
        typer.Option(
            metavar="CELLS|auto", help="The cap; 0 is the whole context.", show_default="auto"
        ),
    ] = None,
    kv_ring_default: Annotated[
        str, typer.Option(metavar="CELLS", help="The default ring.")
    ] = "32768",
    max_new: Annotated[int, typer.Option(min=1, help="New tokens.")] = DEFAULT_MAX_NEW,
) -> None:
    """Print what each policy would have chosen at published rows, and what that ring measured."""
    with needs_extra("strata policy backtest"):
        from strata.models.backtest import Settings
        from strata.models.backtest import backtest as run_backtest
        from strata.models.backtest_rows import read_rows
    settings = Settings(
        kv_resident_cells=parse_resident(kv_resident),
        ring_default_cells=parse_cells(kv_ring_default, name="--kv-ring-default"),
        max_new=max_new,
    )
    result = run_backtest(read_rows(file), settings)
    show_table(backtest_table(result))
    for line in backtest_notes(result):
        say(line)


def _only_study(store: TrialStore) -> str:
    studies = store.studies()
    if len(studies) != 1:
        listed = ", ".join(f"{item.study} ({item.name})" for item in studies) or "none"
        raise UsageError(f"--study: name one of the studies in the database: {listed}")
    return studies[0].study
