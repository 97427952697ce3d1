"""`strata bench decode`: tok/s = rounds/s x tokens/round by depth, drafts and ring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from strata.cli import session_options as session_opt
from strata.cli.bench import options as opt
from strata.cli.bench.report import check, progress, show_spread
from strata.cli.console import fail_cleanly, say, show_table, warn
from strata.cli.json_file import check_json_target, write_json
from strata.config import DEFAULT_PREFETCH
from strata.openmp import calm
from strata.units import format_cells

if TYPE_CHECKING:
    from strata.bench.decode import DecodeFigure
    from strata.bench.profile import RoundProfile

NAME = "decode"
EPILOG = "Example: strata bench decode --depth 1K,4K --spec 0,3 --ring 0,1K --select 256 --json -"
MIN_NEW = 32


@fail_cleanly()
def command(
    depth: opt.Depths = "1K",
    spec: Annotated[
        str, typer.Option(metavar="LIST", help="Drafts a round, like 0,1,3,auto.")
    ] = "0,1,3",
    ring: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="Caps of the ring in cells, or auto; 0 keeps everything resident."
        ),
    ] = "auto",
    select: Annotated[
        str, typer.Option(metavar="CELLS|depth/N", help="Cells that a query row reads; 0 is all.")
    ] = session_opt.DEFAULT_SELECT,
    prefetch: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="What is fetched ahead, like none,pages,experts,all.",
            show_default=DEFAULT_PREFETCH,
        ),
    ] = None,
    vram_budget: session_opt.VramBudget = None,
    mtp_window: session_opt.MtpWindow = session_opt.AUTO,
    max_new: Annotated[int, typer.Option(min=MIN_NEW, help="New tokens a repeat.")] = 256,
    repeats: opt.Repeats = opt.DEFAULT_REPEATS,
    seed: opt.Seed = 0,
    model: opt.Model = None,
    device: opt.Device = "auto",
    threads: opt.Threads = None,
    json_file: opt.Json = None,
) -> None:
    """Decode rate of a model on this device by depth, drafts and ring.

    Every arm continues the same prompt; a repeat rewinds to the state behind it. On a GPU a second
    table says how many kernels a captured round launches and what they take, by part.
    """
    depths = opt.parse_list(depth, opt.parse_depth)
    drafts = opt.parse_list(spec, opt.parse_drafts)
    rings = opt.parse_list(ring, opt.parse_ring)
    ahead = [None] if prefetch is None else opt.parse_list(prefetch, opt.parse_prefetch)
    config = session_opt.session_config(
        kv_select=select, vram_budget=vram_budget, mtp_window=mtp_window
    )
    check_json_target(json_file)
    calm()
    from strata.bench.decode import Arm, measure_decode, steps
    from strata.device import device_name, set_decode_threads
    from strata.lm import bundled_model_path, load_model

    warn(set_decode_threads(threads))
    loaded = load_model(model or bundled_model_path(), device)
    pooled = config.vram_budget_bytes is not None
    check(loaded, selected=not config.kv.selection.is_dense, pooled=pooled)
    arms = [
        Arm(depth=d, drafts=n, ring=r, prefetch=p)
        for d in depths
        for n in drafts
        for r in rings
        for p in ahead
    ]
    with progress("decode", steps(arms, repeats)) as step:
        figures = list(
            measure_decode(
                loaded, arms, config, max_new=max_new, repeats=repeats, seed=seed, on_step=step
            )
        )
    warn(dict.fromkeys(line for figure in figures for line in figure.warnings))
    name = device_name(loaded.device)
    if json_file != "-":
        _show(figures)
        say(f"{name}: {max_new} tokens a repeat, median (least-most) of {repeats} repeats")
    if json_file is not None:
        facts = {"bench": NAME, "device": name, "model_hash": loaded.model_hash, "seed": seed}
        facts |= {"select": select, "vram_budget_bytes": config.vram_budget_bytes}
        facts |= {"mtp_window": mtp_window, "max_new": max_new, "repeats": repeats}
        write_json(json_file, {**facts, "figures": [_object(figure) for figure in figures]})


def _show(figures: list[DecodeFigure]) -> None:
    table = Table(
        "depth", "drafts", "ring", "tok/s", "rounds/s", "tokens/round", "misses a round", "tokens"
    )
    prefetching = any(figure.arm.prefetch not in (None, "none") for figure in figures)
    if prefetching:
        table.add_column("prefetched a round, used of them")
    for figure in figures:
        rounds = max(1, round((len(figure.tokens) - 1) / figure.tokens_round))
        table.add_row(
            format_cells(figure.arm.depth),
            str(figure.arm.drafts),
            str(figure.ring_cells),
            show_spread(figure.tok_s),
            show_spread(figure.rounds_s),
            f"{figure.tokens_round:.2f}",
            f"{figure.kv.misses / rounds:.1f} + {figure.experts.misses / rounds:.1f} experts",
            f"{figure.agreeing} of {len(figure.tokens)} as the first",
            *([_prefetched(figure, rounds)] if prefetching else []),
        )
    show_table(table)
    profiled = [(figure, figure.profile) for figure in figures if figure.profile is not None]
    for depth in dict.fromkeys(figure.arm.depth for figure, _ in profiled):
        show_table(_parts_table([pair for pair in profiled if pair[0].arm.depth == depth]))


def _prefetched(figure: DecodeFigure, rounds: int) -> str:
    kv, experts = figure.kv, figure.experts
    if figure.arm.prefetch in (None, "none"):
        return "none"
    return (
        f"{kv.prefetched / rounds:.1f}, {kv.prefetched_used / rounds:.1f} + "
        f"{experts.prefetched / rounds:.1f}, {experts.prefetched_used / rounds:.1f} experts"
    )


def _parts_table(profiled: list[tuple[DecodeFigure, RoundProfile]]) -> Table:
    """Return microseconds and kernels a round of arms of one depth, a column each."""
    depth = format_cells(profiled[0][0].arm.depth)
    table = Table("part of a round", title=f"us (kernels) a round at {depth}")
    for figure, _ in profiled:
        arm = figure.arm
        ahead = "" if arm.prefetch in (None, "none") else f", prefetch {arm.prefetch}"
        table.add_column(f"{arm.drafts} drafts, ring {figure.ring_cells}{ahead}")
    for part in profiled[0][1].parts:
        times = [profile.parts[part] for _, profile in profiled]
        table.add_row(part, *(f"{time.us_round:.1f} ({time.per_round:.1f})" for time in times))
    table.add_section()
    table.add_row("device busy", *(f"{p.us_round:.1f} ({p.per_round:.1f})" for _, p in profiled))
    table.add_row("by the clock", *(f"{1e6 / f.rounds_s.median:.1f}" for f, _ in profiled))
    return table


def _object(figure: DecodeFigure) -> dict[str, Any]:
    from dataclasses import asdict

    values = asdict(figure)
    arm = values.pop("arm")
    values["ring_cap"] = arm.pop("ring")
    return {**arm, **values}
