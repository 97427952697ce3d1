"""The `strata policy` commands on tables as wholes: compare, join, declare, measure again."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from strata.cli.console import fail_cleanly, needs_extra, note, say, show_table
from strata.cli.output_file import check_output_file
from strata.cli.policy_view import checked_table, diff_entries, diff_facts
from strata.cli.tune_options import DeviceOption
from strata.config import MAX_DRAFTS, Selection
from strata.errors import EXIT_WRONG_RESULT, TableError, UsageError
from strata.policy import load_table, save_table
from strata.policy.diff import diff_tables
from strata.policy.merge import NamedTable, declare, merge_tables
from strata.policy.table_document import DECLARABLE
from strata.units import parse_bytes, parse_cells

TableFile = Annotated[Path, typer.Argument(metavar="FILE", help="A policy table (JSON).")]
OutFile = Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the table is written.")]

DECLARE_EPILOG = (
    "Example: strata policy declare a.json --field engine --value 0.2.0 --reason 'same kernels' "
    "--out b.json"
)
NUMBERS = {"page_cells": parse_cells, "mtp_window": parse_cells, "context": parse_cells}


@fail_cleanly()
def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="A policy table (JSON).")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
) -> None:
    """Print what differs between two tables: conditions, tiers, and every entry that does."""
    found = diff_tables(load_table(first), load_table(second))
    if found.facts:
        show_table(diff_facts(found))
    if found.entries:
        show_table(diff_entries(found))
    if not found.facts and not found.entries:
        say("the tables say the same")
    elif not found.moves_a_ring:
        say("every session gets the same ring from both")


@fail_cleanly()
def merge(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Tables; the first one's conditions are kept."),
    ],
    output: OutFile,
    newest: Annotated[
        bool,
        typer.Option(
            "--newest", help="Where tables contradict each other, the last measured wins."
        ),
    ] = False,
) -> None:
    """Join tables of the same conditions into one; contradictions are refused.

    Evidence goes before no evidence; of entries that give the same ring the last measured is kept.
    """
    if len(files) < 2:
        raise UsageError("name at least two tables to join")
    check_output_file(output, "--out")
    merged = merge_tables(
        [NamedTable(str(file), load_table(file)) for file in files], newest=newest
    )
    save_table(merged, output)
    say(f"{output}: {len(merged.tiers)} tiers, {len(merged.entries)} entries")


@fail_cleanly()
def declare_(
    file: TableFile,
    field: Annotated[str, typer.Option(metavar="NAME", help=f"One of {', '.join(DECLARABLE)}.")],
    value: Annotated[
        str, typer.Option(help="The other value under which the table is to be obeyed.")
    ],
    reason: Annotated[str, typer.Option(help="Why that may be; it is kept in the table.")],
    output: OutFile,
) -> None:
    """Write into a table that it may be reused where one condition has another value."""
    if field not in DECLARABLE:
        raise UsageError(f"--field: {field!r} is none of {', '.join(DECLARABLE)}")
    if not reason.strip():
        raise UsageError("--reason: say why; it is kept in the table")
    check_output_file(output, "--out")
    told = declare(load_table(file), field=field, value=_typed(field, value), reason=reason)
    save_table(told, output)
    say(f"{output}: obeyed where {field} is {value}, too")


@fail_cleanly()
def check(
    file: TableFile,
    tier: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CELLS",
            help="Check only this tier; may be given again.",
            show_default="every tier",
        ),
    ] = None,
    entries: Annotated[
        int, typer.Option(min=1, help="Entries to measure at most, the least sure first.")
    ] = 3,
    passages: Annotated[int, typer.Option(min=2, help="Pairs for each, one a passage.")] = 4,
    max_new: Annotated[int, typer.Option(min=16, help="New tokens a run.")] = 128,
    model: Annotated[
        str, typer.Option(metavar="FOLDER", help="The checkpoint of the table.")
    ] = "bundled",
    device: DeviceOption = "auto",
) -> None:
    """Measure a few entries again beside the default ring: does the table still hold here?

    Only entries that move a ring are measured. Exit code 1 where one does not hold.
    """
    with needs_extra("strata policy check"):
        from strata.tuner import check as checking
        from strata.tuner.runner import ProcessRunner, server_command
    table = load_table(file)
    try:
        tiers = [parse_cells(text, name="--tier") for text in tier or ()]
        chosen = checking.choose_entries(table, tiers=tiers, count=entries)
        sets = [checking.confirming_passages(table, passages, entry.tier_cells) for entry in chosen]
        with tempfile.TemporaryDirectory() as scratch:
            log = Path(scratch) / "trials.log"
            with ProcessRunner(server_command(model=model, device=device), log=log) as runner:
                facts = runner.describe([name for names in sets for name in names])
                checking.refuse_elsewhere(table, facts)
                if not chosen:
                    say("no entry moves a ring off the default, so there is nothing to measure")
                    return
                found = list(
                    checking.check_entries(
                        table, chosen, runner, facts, passages=passages, max_new=max_new,
                        timeout_s=600.0,
                        on_pair=lambda pair, _: note(
                            f"tier {pair.tier_cells}, drafter {pair.mode}, {pair.passage} is done"
                        ),
                    )
                )  # fmt: skip
    except TableError as error:
        raise TableError(f"policy table {file}: {error}") from error
    show_table(checked_table(found, table.margin_ratio))
    say(checking.freshness(table, sets[0]))
    counts = [
        f"{sum(one.outcome == word for one in found)} {word}"
        for word in ("holds", "does not hold", "undecided")
    ]
    say(f"of {len(found)} entries: {', '.join(counts)}")
    if any(one.outcome == "does not hold" for one in found):
        raise typer.Exit(EXIT_WRONG_RESULT)


def _typed(field: str, text: str) -> str | int | None:
    """Return a condition's value as a table holds it; raise UsageError where it is none."""
    if field == "vram_budget_bytes":
        return None if text == "unset" else parse_bytes(text, name="--value")
    if field in NUMBERS and text not in ("auto", "own"):
        return NUMBERS[field](text, name="--value")
    if field == "select":
        return str(Selection.parse(text))
    if field == "spec" and text != "auto":
        return _drafts(text)
    return text


def _drafts(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 4 and int(text) <= MAX_DRAFTS):
        raise UsageError(f"--value: {text!r} is no number of drafts from 0 to {MAX_DRAFTS}")
    return int(text)
