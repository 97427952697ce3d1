"""`strata tune acceptance`: what drafts give on one's own prompts, beside a study's costs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli.console import fail_cleanly, needs_extra, note, say, show_table
from strata.cli.json_file import check_json_target, write_json
from strata.cli.output_file import check_output_file
from strata.cli.tune_options import DATABASE_NAME, DEFAULT_OUT, DatabaseOption, DeviceOption
from strata.config import DEFAULT_MAX_NEW, MAX_DRAFTS
from strata.errors import UsageError
from strata.openmp import calm

if TYPE_CHECKING:
    from strata.tuner.study import StudyRecord


@fail_cleanly()
def acceptance(
    prompts: Annotated[
        list[Path],
        typer.Argument(metavar="FILE|FOLDER...", help="Text files, one prompt each, or folders."),
    ],
    study: Annotated[
        str | None,
        typer.Option(metavar="STUDY", help="Hold it against this study's costs, its way to draft."),
    ] = None,
    spec: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MAX_DRAFTS,
            help="Drafts a round; without --study.",
            show_default="the study's, else 1",
        ),
    ] = None,
    max_new: Annotated[int, typer.Option(min=16, help="New tokens a prompt.")] = DEFAULT_MAX_NEW,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="A checkpoint.", show_default="the study's, else the bundled one"
        ),
    ] = None,
    device: DeviceOption = "auto",
    workload: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Keep the counts in the database under this name."),
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write every prompt's counts; '-' is stdout."),
    ] = None,
    db: DatabaseOption = DEFAULT_OUT / DATABASE_NAME,
) -> None:
    """Count accepted drafts on your own prompts; with a study, say whether drafting pays for them.

    Each prompt is continued once and nothing is timed: costs are the study's.
    """
    check_json_target(json_file)
    if study is not None and spec is not None:
        raise UsageError("--spec is the study's own; leave it out, or leave --study out")
    calm()
    with needs_extra("strata tune acceptance"):
        from strata.cli.cost_view import outlook_table, rates_table
        from strata.tuner import acceptance as measuring
        from strata.tuner.environment import engine_version
        from strata.tuner.store import open_database
        from strata.tuner.workload import Conditions, Workload
    if workload is not None:
        _check_workload(workload, db)
    texts = measuring.read_prompts(prompts)
    how = Conditions(drafts=spec or 1, temperature=temperature, max_new=max_new)
    record, prices, tiers = None, [], tuple[int, ...]()
    if study is not None:
        with open_database(db, read_only=True) as store:
            record = store.study(study)
            prices = measuring.prices_of(store, record)
        tiers = record.read_plan().grid.tiers
        how = measuring.conditions_of(record, temperature=temperature, max_new=max_new)

    from strata.device import device_name, set_decode_threads
    from strata.lm import bundled_model_path, load_model

    set_decode_threads(None)
    loaded = load_model(model or _model_of(record) or bundled_model_path(), device)
    if record is not None and loaded.model_hash != record.model_hash:
        raise UsageError(
            f"study {record.study} measured model {record.model_hash[:12]}, and this is "
            f"{loaded.model_hash[:12]}; name its checkpoint with --model"
        )
    counts = list(measuring.count_drafts(loaded, texts, how, on_skip=note))
    if not counts:
        raise UsageError("no prompt was continued far enough to tell; give longer ones, or more")
    found = measuring.by_depth(counts, tiers)
    if json_file != "-":
        show_table(rates_table(found))
        if record is not None:
            show_table(outlook_table(found, prices))
            if not prices:
                say("the study has run one drafter mode alone, so what drafting costs is not known")
    made = Workload(
        workload=workload or "prompts",
        model_hash=loaded.model_hash,
        engine_version=engine_version(),
        device=device_name(loaded.device),
        conditions=how,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        prompts=counts,
    )
    if workload is not None:
        with open_database(db) as store:
            store.add_workload(made)
        note(f"kept as workload {workload} in {db}; strata tune costs STUDY --workload {workload}")
    if json_file is not None:
        write_json(json_file, made.to_json())


def _check_workload(name: str, db: Path) -> None:
    """Raise now where the counts could not be kept under a name when the work is over."""
    from strata.tuner.store import open_database

    if not db.exists():
        check_output_file(db, "--db")
        return
    with open_database(db) as store:
        store.refuse_known_workload(name)


def _model_of(record: StudyRecord | None) -> Path | None:
    if record is None or (name := record.read_plan().model) == "bundled":
        return None
    return Path(name)
