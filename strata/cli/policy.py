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
from strata.cli.tune_options import DATABASE_NAME, DEFAULT_OUT
from strata.config import DEFAULT_MAX_NEW, PAGE_CELLS
from strata.errors import TableError, UsageError
from strata.policy import load_table, parse_resident, save_table, user_folder
from strata.policy.explain import Question, explain_ring
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
    device: Annotated[
        str, typer.Option(metavar="auto|cuda|cpu", help="Whose default ring to assume.")
    ] = "auto",
    kv_resident: opt.KvResident = None,
    kv_ring_default: opt.KvRingDefault = None,
    kv_evict: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(opt.VICTIMS),
            help="Whose slot a missing page takes.",
            show_default=f"the table's, else {opt.DEFAULT_EVICT}",
        ),
    ] = None,
    kv_select: Annotated[
        str | None,
        typer.Option(
            metavar="CELLS|depth/N",
            help="Cells a row reads; 0 is all.",
            show_default=f"the table's, else {opt.DEFAULT_SELECT}",
        ),
    ] = None,
    kv_page: Annotated[
        int | None,
        typer.Option(
            metavar="CELLS", help="Cells of a page.", show_default=f"the table's, else {PAGE_CELLS}"
        ),
    ] = None,
    vram_budget: opt.VramBudget = None,
    max_context: opt.MaxContext = None,
    spec: opt.Spec = None,
    no_mtp: opt.NoMtp = False,
    mtp_window: Annotated[
        str | None,
        typer.Option(
            metavar="CELLS|auto",
            help="Cells the drafter reads; 0 is all.",
            show_default=f"the table's, else {opt.AUTO}",
        ),
    ] = None,
) -> None:
    """Print the ring that a session would get, with the line it would print, and why.

    It asks the functions that a session asks. No model is loaded: what only a model could tell
    is assumed, or taken from the table, and said.
    """
    config = opt.session_config(
        kv_resident=kv_resident,
        kv_ring_default=kv_ring_default,
        kv_ring_policy=policy,
        kv_ring_table=table,
        kv_evict=opt.DEFAULT_EVICT if kv_evict is None else kv_evict,
        kv_select="0" if kv_select is None else kv_select,
        kv_page=PAGE_CELLS if kv_page is None else kv_page,
        vram_budget=vram_budget,
        max_context=max_context,
        spec=spec,
        no_mtp=no_mtp,
        mtp_window="auto" if mtp_window is None else mtp_window,
    )
    window = config.spec.window_cells
    question = Question(
        depth_cells=parse_cells(depth, name="--depth"),
        max_new=max_new,
        policy=config.policy,
        table=config.table,
        kv_resident=config.kv.resident_cells,
        ring_default_cells=config.kv.ring_default_cells,
        max_context_cells=config.max_context_cells,
        device_kind=_device_kind(device, needed=kv_ring_default is None),
        spec=config.spec.drafts,
        page_cells=kv_page,
        select=None if kv_select is None else str(config.kv.selection),
        mtp_window=None if mtp_window is None else "auto" if window is None else window,
        victims=None if kv_evict is None else config.kv.victims,
        vram_budget_bytes=config.vram_budget_bytes,
    )
    explanation = explain_ring(question, os.environ)
    warn(explanation.warnings)
    say(explanation.decision.log_line)
    for name, value in decision_reasons(explanation):
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
        from strata.tuner.conclude import conclude, usage_line
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
    note(f"use it with: {usage_line(record, str(path))}")


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


def _device_kind(text: str, *, needed: bool) -> str:
    if text not in ("auto", "cuda", "cpu"):
        raise UsageError(f"--device: {text!r} is none of auto, cuda, cpu")
    if text != "auto" or not needed:
        return "cpu" if text == "cpu" else "cuda"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
