"""`strata generate`: continue one prompt."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strata.cli import session_options as opt
from strata.cli.completion import passages
from strata.cli.console import err, fail_cleanly, hush, note, show_table, warn
from strata.cli.interrupts import EXIT_INTERRUPTED, holding
from strata.cli.json_file import check_json_target, write_json
from strata.cli.prompt_text import prompt_text, typed_text
from strata.config import PAGE_CELLS, SamplingParams
from strata.errors import UsageError
from strata.openmp import calm
from strata.policy import check_policy

if TYPE_CHECKING:
    from strata.lm import LanguageModel
    from strata.session import Session

EPILOG = "Example: strata generate --passage 4096:3 --kv-resident 1024 --max-new 64 --json run.json"
_SAMPLING = "Sampling"
_DEFAULT = SamplingParams()


@fail_cleanly()
def generate(
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; '-' or none reads standard input.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    passage: Annotated[
        str | None,
        typer.Option(
            metavar="CELLS[:SEED]",
            autocompletion=passages,
            help="Take a bundled held-out text as the prompt.",
        ),
    ] = None,
    special_tokens: Annotated[
        bool, typer.Option(help="Add what the tokenizer adds to a text, such as BOS at its start.")
    ] = True,
    model: Annotated[
        Path | None, typer.Option(help="Checkpoint folder.", show_default="the bundled model")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[
        int | None,
        typer.Option(help="CPU threads that decode; prompts take all.", show_default="1"),
    ] = None,
    max_new: Annotated[int, typer.Option(help="New tokens at most.")] = _DEFAULT.max_new,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write one JSON object; '-' is stdout."),
    ] = None,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", callback=hush, help="Print the text alone: no notes, warnings or figures."
        ),
    ] = False,
    temperature: Annotated[
        float, typer.Option(help="0 is greedy.", rich_help_panel=_SAMPLING)
    ] = _DEFAULT.temperature,
    top_k: Annotated[
        int, typer.Option(help="0 keeps all.", rich_help_panel=_SAMPLING)
    ] = _DEFAULT.top_k,
    top_p: Annotated[
        float, typer.Option(help="1 keeps all.", rich_help_panel=_SAMPLING)
    ] = _DEFAULT.top_p,
    min_p: Annotated[
        float, typer.Option(help="0 keeps all.", rich_help_panel=_SAMPLING)
    ] = _DEFAULT.min_p,
    seed: Annotated[
        int, typer.Option(help="Seed of the noise.", rich_help_panel=_SAMPLING)
    ] = _DEFAULT.seed,
    repeat_penalty: Annotated[
        float,
        typer.Option(
            help="Divide logits of tokens seen before by it, multiply negative ones; 1 is off.",
            rich_help_panel=_SAMPLING,
        ),
    ] = _DEFAULT.repeat_penalty,
    repeat_last_n: Annotated[
        int,
        typer.Option(
            help="Tokens that count as seen, the prompt's too; -1 is all, 0 none.",
            rich_help_panel=_SAMPLING,
        ),
    ] = _DEFAULT.repeat_last_n,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End before this text; may be repeated.", rich_help_panel=_SAMPLING),
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on past the end-of-text token.")
    ] = False,
    kv_resident: opt.KvResident = None,
    kv_ring_default: opt.KvRingDefault = None,
    kv_ring_policy: opt.KvRingPolicy = None,
    kv_ring_table: opt.KvRingTable = None,
    kv_evict: opt.KvEvict = None,
    kv_select: opt.KvSelect = opt.DEFAULT_SELECT,
    kv_page: opt.KvPage = PAGE_CELLS,
    vram_budget: opt.VramBudget = None,
    max_context: opt.MaxContext = None,
    no_graphs: opt.NoGraphs = False,
    prefetch: opt.PrefetchWhat = None,
    spec: opt.Spec = None,
    no_mtp: opt.NoMtp = False,
    spec_min_p: opt.SpecMinP = opt.DEFAULT_MIN_P,
    mtp_window: opt.MtpWindow = opt.AUTO,
) -> None:
    """Continue a prompt: text to stdout, everything else to stderr."""
    config = opt.session_config(
        kv_resident=kv_resident,
        kv_ring_default=kv_ring_default,
        kv_ring_policy=kv_ring_policy,
        kv_ring_table=kv_ring_table,
        kv_evict=kv_evict,
        kv_select=kv_select,
        kv_page=kv_page,
        vram_budget=vram_budget,
        max_context=max_context,
        no_graphs=no_graphs,
        prefetch=prefetch,
        spec=spec,
        no_mtp=no_mtp,
        spec_min_p=spec_min_p,
        mtp_window=mtp_window,
    )
    params = SamplingParams(
        max_new=max_new,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        repeat_penalty=repeat_penalty,
        repeat_last_n=repeat_last_n,
        stop=tuple(typed_text(one, "--stop") for one in stop or ()),
        ignore_eos=ignore_eos,
    )
    config.check()
    params.check()
    check_policy(policy=config.policy, table=config.table, environ=os.environ)
    if passage is not None and not special_tokens:
        raise UsageError("--no-special-tokens goes with a text, and --passage names none")
    check_json_target(json_file)
    text = prompt_text(prompt, file, passage)

    calm()
    from strata.device import set_decode_threads
    from strata.lm import bundled_model_path, load_model
    from strata.passages import parse_passage
    from strata.session import create_session

    if passage is not None:
        parse_passage(passage)
    warn(set_decode_threads(threads))
    loaded = load_model(model or bundled_model_path(), device)
    ids = _prompt_ids(loaded, text, passage, special_tokens)
    session = create_session(loaded, config, prompt_cells=len(ids), max_new=max_new)
    if device == "auto" and loaded.device.type == "cpu":
        note("no CUDA device: running on the CPU in float32")
    warn(session.warnings)
    if not session.drafts:
        warn(opt.idle_drafter_switches(config.spec))
    note(session.decision.log_line)
    _run(session, ids, params, json_file)


def _prompt_ids(
    model: LanguageModel, text: str | None, passage: str | None, special_tokens: bool
) -> list[int]:
    if text is None:
        from strata.passages import load_passage

        assert passage is not None
        return load_passage(passage, model.tokenizer)
    ids = model.tokenizer.encode(text, special_tokens=special_tokens)
    if not ids:
        raise UsageError(f"the tokenizer of {model.folder} knows no token of the prompt")
    return ids


def _run(session: Session, ids: list[int], params: SamplingParams, json_file: str | None) -> None:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from strata.cli.stats import stats_block, stats_object
    from strata.device import every_core

    columns = (TextColumn("prefill"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with every_core(), Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("prefill", total=len(ids))
        prefill = session.prefill(ids, lambda rows: progress.advance(task, rows))
    to_stdout = json_file != "-"

    def show(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    with holding():  # what was generated is kept
        generation = session.generate(params, show if to_stdout else None)
    if to_stdout:
        sys.stdout.write("\n")
        sys.stdout.flush()
    stats = stats_object(session, prefill, generation)
    show_table(stats_block(stats), err)
    if json_file is not None:
        write_json(json_file, stats)
    if generation.stopped == "interrupted":
        raise typer.Exit(EXIT_INTERRUPTED)
