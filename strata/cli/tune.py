"""`strata tune`: measure rings over a plan, store every trial, conclude with a policy table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli import tune_acceptance, tune_move, tune_study
from strata.cli.console import (
    end_on_sigterm,
    fail_cleanly,
    needs_extra,
    note,
    say,
    show_table,
    warn,
)
from strata.cli.interrupts import EXIT_INTERRUPTED
from strata.cli.output_file import check_folder, check_output_file
from strata.cli.tune_group import SweepByDefault
from strata.cli.tune_options import (
    DATABASE_NAME,
    DEFAULT_OUT,
    DbOption,
    DeviceOption,
    IsolationOption,
    ModelOption,
    ModesOption,
    OutOption,
    PlanArgument,
    RetryOption,
    SamplerOption,
    StudyArgument,
    WorkersOption,
)
from strata.errors import EXIT_BAD_INPUT

EXIT_PART_FAILED = 1

if TYPE_CHECKING:
    from strata.tuner.drive import Crew
    from strata.tuner.plan import Plan
    from strata.tuner.store import TrialStore
    from strata.tuner.study import StudyRecord
    from strata.tuner.sweep import Outcomes


app = typer.Typer(
    name="tune",
    cls=SweepByDefault,
    help="Measure which K/V ring is fastest, per depth and drafter, and write a policy table. "
    "Without a command it is `sweep`, with the arguments and options below.",
)

app.command("replay", epilog="Example: strata tune replay quick --sampler tpe --seeds 10")(
    tune_study.replay
)
app.command("verdict", epilog="Example: strata tune verdict quick")(tune_study.verdict)
app.command("compare", epilog="Example: strata tune compare 0123abcd 4567cdef")(tune_study.compare)
app.command("costs", epilog="Example: strata tune costs drafts --workload mine")(tune_study.costs)
app.command(
    "acceptance", epilog="Example: strata tune acceptance prompts/ --study quick --workload mine"
)(tune_acceptance.acceptance)
app.command("import", epilog="Example: strata tune import trials.jsonl")(tune_move.import_)
app.command("export", epilog="Example: strata tune export quick --jsonl trials.jsonl")(
    tune_move.export
)
app.command("doctor", epilog="Example: strata tune doctor --repair")(tune_move.doctor)


@app.command(epilog="Example: strata tune sweep plan.toml --workers 4 --resume")
@fail_cleanly()
def sweep(
    plan: PlanArgument = "quick",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a study; what is stored is not repeated.")
    ] = False,
    retry: RetryOption = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Say which studies the database holds, and stop.")
    ] = False,
    show: Annotated[
        str | None, typer.Option(metavar="STUDY", help="Print one study's verdicts, and stop.")
    ] = None,
    model: ModelOption = None,
    modes: ModesOption = None,
    sampler: SamplerOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = "1",
    isolation: IsolationOption = "process",
    out: OutOption = DEFAULT_OUT,
    db: DbOption = None,
) -> None:
    """Run a plan: every ring beside the default one, into the database, a table and a report.

    Exit code 0: every pair was measured; 1: part of them failed; 2: nothing was measured.
    """
    path = db or out / DATABASE_NAME
    with needs_extra("strata tune"):
        from strata.tuner.store import open_database
        from strata.tuner.sweep import count_outcomes
    if list_ or show is not None:
        with open_database(path, read_only=True) as store:
            if store.writer:
                note(f"{store.writer} is writing {path}; this is what is in it so far")
            _print_list(store) if list_ else _print_study(store, show or "")
        return
    chosen = _load_plan(plan, model, modes)
    if sampler is not None:
        chosen = chosen.with_sampler(sampler)
    crew = _parse_crew(workers, isolation)
    plans = _expand(chosen)
    codes = []
    with open_database(path) as store:
        for one in plans:
            study = _run(
                one, store, device=device, crew=crew, resume=resume, retry=retry is not None,
                beside=plans, where=str(path), out=out, onward="go on with --resume",
            )  # fmt: skip
            outcomes = count_outcomes(store.trials(study.study))
            if outcomes.measured:
                _finish(store, study, out)
            codes.append(_exit_code(study, outcomes, again="--resume --retry failed"))
    raise typer.Exit(_worst(codes))


@app.command("run-trials", epilog="Example: strata tune run-trials quick --jsonl trials.jsonl")
@fail_cleanly()
def run_trials(
    plan: PlanArgument,
    jsonl: Annotated[Path, typer.Option(metavar="FILE", help="Where the trials are written.")],
    model: ModelOption = None,
    modes: ModesOption = None,
    device: DeviceOption = "auto",
    workers: WorkersOption = "1",
    isolation: IsolationOption = "process",
    retry: RetryOption = None,
) -> None:
    """Run a plan where there is no database, into JSON lines; the same file again goes on.

    Where the plan's axes make several studies, each has a file with its name before FILE's. Exit
    code 0: every pair was measured; 1: part of them failed; 2: nothing was measured.
    """
    check_output_file(jsonl, "--jsonl", only_plain=True)
    with needs_extra("strata tune run-trials"):
        from strata.tuner.store import JsonlStore
        from strata.tuner.sweep import count_outcomes
    chosen = _load_plan(plan, model, modes)
    crew = _parse_crew(workers, isolation)
    plans = _expand(chosen)
    codes = []
    for one in plans:
        own = jsonl if len(plans) == 1 else jsonl.with_name(f"{one.name}-{jsonl.name}")
        with JsonlStore(own) as store:
            study = _run(
                one, store, device=device, crew=crew, resume=True, retry=retry is not None,
                beside=plans, where=str(own), out=own.parent, onward="the same command goes on",
            )  # fmt: skip
            outcomes = count_outcomes(store.trials(study.study))
        if outcomes.measured:
            say(f"take them home with: strata tune import {own}")
        codes.append(_exit_code(study, outcomes, again="--retry failed"))
    raise typer.Exit(_worst(codes))


@app.command(epilog="Example: strata tune report quick")
@fail_cleanly()
def report(study: StudyArgument, out: OutOption = DEFAULT_OUT, db: DbOption = None) -> None:
    """Write table and report of a stored study again, from the database alone."""
    check_folder(out, "--out", must_exist=out != DEFAULT_OUT)
    with needs_extra("strata tune report"):
        from strata.tuner.store import open_database
    with open_database(db or out / DATABASE_NAME, read_only=True) as store:
        _finish(store, store.study(study), out)


def _load_plan(name: str, model: str | None, modes: str | None) -> Plan:
    from strata.tuner.plan import load_plan

    plan = load_plan(name)
    plan = plan if modes is None else plan.with_modes(modes)
    return plan if model is None else plan.model_copy(update={"model": model})


def _expand(plan: Plan) -> tuple[Plan, ...]:
    """Return the plan of each study; say so where the plan's axes make several."""
    from strata.tuner.plan_check import plans_to_measure

    plans = plans_to_measure(plan)
    if len(plans) > 1:
        note(f"plan {plan.name} is {len(plans)} studies: {', '.join(one.name for one in plans)}")
    return plans


def _parse_crew(workers: str, isolation: str) -> Crew:
    with needs_extra("strata tune"):
        from strata.tuner.drive import Crew
    return Crew.parse(workers, isolation)


def _run(
    plan: Plan,
    store: TrialStore,
    *,
    device: str,
    crew: Crew,
    resume: bool,
    retry: bool,
    beside: Sequence[Plan],
    where: str,
    out: Path,
    onward: str,
) -> StudyRecord:
    """Sweep with a progress bar; Ctrl-C and SIGTERM say what is stored and exit with 130."""
    from strata.cli.tune_view import SweepBar

    with needs_extra("strata tune"):
        from strata.tuner.drive import run_plan
    with SweepBar() as bar:
        try:
            with end_on_sigterm():
                return run_plan(
                    plan,
                    store,
                    device=device,
                    crew=crew,
                    resume=resume,
                    retry=retry,
                    beside=beside,
                    where=where,
                    log=out / "trials.log",
                    on_start=bar.start,
                    on_pair=bar.advance,
                    on_note=note,
                )
        except KeyboardInterrupt:
            bar.stop()
            note(f"interrupted; every finished pair is in {where}; {onward}")
            raise typer.Exit(EXIT_INTERRUPTED) from None


def _exit_code(study: StudyRecord, outcomes: Outcomes, *, again: str) -> int:
    """Return the exit code of a sweep that ended, and say what failed in it."""
    if outcomes.first is None:
        return 0
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(outcomes.failed.items()))
    failed = sum(outcomes.failed.values())
    if outcomes.measured:
        warn([f"{failed} of {failed + outcomes.measured} pairs failed ({kinds}); what failed for "
              f"a passing reason is measured again with {again}"])  # fmt: skip
        return EXIT_PART_FAILED
    note(
        f"error: study {study.study} ({study.name}) measured nothing: all {failed} pairs failed "
        f"({kinds}), the first with: {' '.join(outcomes.first.message.split())}"
    )
    return EXIT_BAD_INPUT


def _worst(codes: Sequence[int]) -> int:
    """Return the exit code of several studies: nothing, part, or all of them measured."""
    return codes[0] if len(set(codes)) == 1 else EXIT_PART_FAILED


def _finish(store: TrialStore, study: StudyRecord, out: Path) -> None:
    """Write table and report, print the verdicts and the line that uses the table."""
    from strata.cli.policy_view import table_entries
    from strata.cli.tune_view import control_line, measured_table, model_lines

    with needs_extra("strata tune"):
        from strata.policy.table_file import save_table
        from strata.tuner.conclude import NOTHING_TO_USE, conclude
        from strata.tuner.drive import REPORT_NAME, TABLE_NAME, study_folder
        from strata.tuner.report import summarise, write_report
    folder = study_folder(out, study)
    table = conclude(store, study)
    summary = summarise(store, study, table, table_path=str(folder / TABLE_NAME))
    if not summary["so_far"]:
        save_table(table, folder / TABLE_NAME)
    write_report(summary, folder / REPORT_NAME)
    show_table(measured_table(summary))
    show_table(table_entries(table))
    for line in [*summary["reasons"], control_line(summary), *model_lines(summary)]:
        say(line)
    say(f"study   {study.study} ({study.name})")
    if summary["so_far"]:
        say(f"report  {folder / REPORT_NAME}")
        say("no table: strata tune PLAN --resume measures the rest; strata policy export --partial")
        return
    say(f"table   {folder / TABLE_NAME}")
    say(f"report  {folder / REPORT_NAME}")
    say(summary["use"] or NOTHING_TO_USE)


def _print_list(store: TrialStore) -> None:
    from strata.cli.tune_view import study_table

    show_table(study_table(store))


def _print_study(store: TrialStore, key: str) -> None:
    from strata.cli.policy_view import table_entries
    from strata.cli.tune_view import measured_table, study_facts

    with needs_extra("strata tune --show"):
        from strata.tuner.conclude import conclude
        from strata.tuner.report import summarise
    study = store.study(key)
    for name, value in study_facts(store, study):
        say(f"{name:<21}{value}")
    if not store.trials(study.study):
        say("no pair was measured yet")
        return
    table = conclude(store, study)
    summary = summarise(store, study, table)
    show_table(measured_table(summary))
    show_table(table_entries(table))
    for line in summary["reasons"]:
        say(line)
