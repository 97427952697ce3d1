"""The `strata tune` commands that move studies between databases, and look one over."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from strata.cli.console import fail_cleanly, needs_extra, note, say, show_table
from strata.cli.output_file import check_folder, check_output_file, check_parent
from strata.cli.tune_options import (
    DATABASE_NAME,
    DEFAULT_OUT,
    DatabaseOption,
    DbOption,
    OutOption,
    StudyArgument,
)
from strata.errors import StoreError, UsageError
from strata.files import is_stream


@fail_cleanly()
def import_(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|FOLDER", help="JSON lines of run-trials or export, or a Parquet folder."
        ),
    ],
    out: OutOption = DEFAULT_OUT,
    db: DbOption = None,
) -> None:
    """Take trials that ran elsewhere into the database; a trial that is there stays as it is.

    What a manifest speaks of is held against it first, and a damaged file is refused.
    """
    with needs_extra("strata tune import"):
        from strata.tuner.store import open_database, read_study, take_in
        from strata.tuner.sweep import count_pairs
    check_folder(out, "--out")
    study, trials = read_study(file)
    with open_database(db or out / DATABASE_NAME) as store:
        new, known = take_in(store, study, trials, origin=str(file))
        done, total = count_pairs(study, store)
    say(
        f"study {study.study} ({study.name}): {new} trials new, {known} known; {done}/{total} pairs"
    )
    where = [] if out == DEFAULT_OUT else ["--out", str(out)]
    where += [] if db is None else ["--db", str(db)]
    say(f"conclude with: {shlex.join(['strata', 'tune', 'report', study.study, *where])}")


@fail_cleanly()
def export(
    study: StudyArgument,
    jsonl: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write JSON lines, and a manifest beside.")
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write Parquet and a manifest into a new folder."),
    ] = None,
    optuna: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write SQLite that optuna-dashboard opens, to look at."),
    ] = None,
    out: OutOption = DEFAULT_OUT,
    db: DbOption = None,
) -> None:
    """Write one study of the database as files that `strata tune import` reads, or for Optuna."""
    if jsonl is None and parquet is None and optuna is None:
        raise UsageError("say where to: --jsonl FILE, --parquet FOLDER or --optuna FILE")
    if jsonl is not None:
        check_output_file(jsonl, "--jsonl")
    if parquet is not None:
        check_parent(parquet, "--parquet")
    if optuna is not None:
        check_output_file(optuna, "--optuna", only_plain=True)
    with needs_extra("strata tune export"):
        from strata.tuner.dashboard import export_optuna
        from strata.tuner.store import export_jsonl, open_database
        from strata.tuner.store.parquet import export_parquet
    with open_database(db or out / DATABASE_NAME, read_only=True) as store:
        if jsonl is not None:
            written = f"{export_jsonl(store, study, jsonl)} trials in {jsonl}"
            note(written) if is_stream(jsonl) else say(written)
        if parquet is not None:
            say(f"{export_parquet(store, study, parquet)} trials in {parquet}")
        if optuna is not None:
            name, count = export_optuna(store, study, optuna)
            say(f"{count} arms of {name} in {optuna}")
            say(f"look at it with: optuna-dashboard sqlite:///{optuna}")


@fail_cleanly()
def doctor(
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Take out what is wrong; it is kept in JSON lines beside the database."
        ),
    ] = False,
    db: DatabaseOption = DEFAULT_OUT / DATABASE_NAME,
) -> None:
    """Check a trial database: schema, hashes, every row, whole pairs; say what is unfinished."""
    from strata.cli.study_view import findings_table

    with needs_extra("strata tune doctor"):
        from strata.tuner.passages import passages_hash_here
        from strata.tuner.store import doctor as surgery
    found = surgery.examine(db, passages_hash_here)
    say(f"{db}: schema {found.version}, {len(found.studies)} studies, {found.num_trials} trials")
    if found.findings:
        show_table(findings_table(found))
    if repair and found.of("wrong"):
        note(f"taken out and kept in {surgery.repair(db)}")
        found = surgery.examine(db, passages_hash_here)
    left = found.of("wrong", "lost")
    if not left:
        say("nothing is wrong")
        return
    hint = "" if repair or not found.of("wrong") else "; --repair takes them out and keeps them"
    raise StoreError(f"{db}: {len(left)} findings are wrong{hint}")
