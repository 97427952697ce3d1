"""`strata bench peers`: `transformers` on the same checkpoint beside strata, in one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from strata.cli.bench import options as opt
from strata.cli.bench.report import check, progress, show_spread
from strata.cli.console import fail_cleanly, note, say, show_table, warn
from strata.cli.json_file import check_json_target, write_json
from strata.errors import UsageError
from strata.openmp import calm
from strata.units import format_cells

if TYPE_CHECKING:
    from strata.bench.peers import PeerFigure

NAME = "peers"
EPILOG = "Example: strata bench peers --depth 512 --spec 0,3 --peers dynamic,mtp --json -"
MIN_NEW = 16
DEFAULT_DEPTH = {"cpu": "512", "cuda": "1K"}
DEFAULT_NEW = {"cpu": 64, "cuda": 128}


@fail_cleanly()
def command(
    depth: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Cells of the prompt.",
            show_default="{cpu} on a CPU, {cuda} on a GPU".format(**DEFAULT_DEPTH),
        ),
    ] = None,
    spec: Annotated[
        str, typer.Option(metavar="LIST", help="Drafts a round of strata, like 0,1,3,auto.")
    ] = "0,1,3",
    ring: Annotated[
        str,
        typer.Option(
            metavar="CELLS|auto", help="Cap of strata's ring; 0 keeps everything resident."
        ),
    ] = "auto",
    peers: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="dynamic, mtp, and on a GPU static (compiled) and offloaded.",
            show_default="all",
        ),
    ] = None,
    max_new: Annotated[
        int | None,
        typer.Option(
            min=MIN_NEW,
            help="New tokens a repeat.",
            show_default="{cpu} on a CPU, {cuda} on a GPU".format(**DEFAULT_NEW),
        ),
    ] = None,
    repeats: opt.Repeats = opt.DEFAULT_REPEATS,
    seed: opt.Seed = 0,
    model: opt.Model = None,
    device: opt.Device = "auto",
    threads: opt.Threads = None,
    json_file: opt.Json = None,
) -> None:
    """Run transformers on the same checkpoint beside strata: tok/s, ratios, equal tokens.

    Arms take turns in one process: a dynamic cache, the same with MTP drafts, and on a GPU a static
    cache with compiled decoding and K/V offloaded to host memory.
    """
    drafts = opt.parse_list(spec, opt.parse_drafts)
    cap = opt.parse_ring(ring)
    depths = None if depth is None else opt.parse_list(depth, opt.parse_depth)
    check_json_target(json_file)
    calm()
    import torch

    from strata.bench import peers as bench
    from strata.device import device_name, resolve_device, set_decode_threads
    from strata.lm import bundled_model_path, load_model
    from strata.passages import load_passage

    where = resolve_device(device)
    names = bench.default_peers(where) if peers is None else opt.parse_list(peers, str)
    bench.check_peers(names, where)
    library = bench.import_transformers()
    warn(set_decode_threads(threads))
    loaded = load_model(model or bundled_model_path(), device)
    if depths is None:
        depths = [opt.parse_depth(DEFAULT_DEPTH[where.type])]
    new = max_new or DEFAULT_NEW[where.type]
    _check_room(loaded.config.max_positions, depths, new)
    check(loaded, selected=False, pooled=False)
    peer = bench.load_peer(library, loaded)
    figures: dict[int, list[PeerFigure]] = {}
    with progress("peers", len(depths) * bench.count_steps(drafts, names, repeats)) as step:
        for cells in depths:
            ids = load_passage(f"{cells}:{seed}", loaded.tokenizer)
            figures[cells] = bench.measure_peers(
                loaded,
                peer,
                ids,
                drafts=drafts,
                ring=cap,
                peers=names,
                new=new,
                repeats=repeats,
                on_step=step,
            )
    name, version = device_name(loaded.device), library.__version__
    if json_file != "-":
        show_table(_table(figures, new))
        say(
            f"{name}: torch {torch.__version__}, transformers {version}; {new} tokens a repeat, "
            f"median (least-most) of {repeats} repeats in turn"
        )
    for listed in figures.values():
        for figure in listed:
            if figure.error:
                note(f"warning: {figure.arm}: {figure.error}")
    if json_file is not None:
        from dataclasses import asdict

        facts = {"bench": NAME, "device": name, "model_hash": loaded.model_hash, "seed": seed}
        facts |= {"torch": str(torch.__version__), "transformers": version}
        facts |= {"max_new": new, "repeats": repeats, "ring_cap": cap}
        rows = [{"depth": cells, **asdict(f)} for cells, listed in figures.items() for f in listed]
        write_json(json_file, {**facts, "figures": rows})


def _check_room(positions: int, depths: list[int], new: int) -> None:
    if max(depths) + new > positions:
        raise UsageError(
            f"--depth: {max(depths)} cells and {new} new tokens exceed the model's {positions} "
            "positions"
        )


def _table(figures: dict[int, list[PeerFigure]], new: int) -> Table:
    table = Table("depth", "arm", "tok/s")
    ours = list(next(iter(figures.values()))[0].ratios)
    for arm in ours:
        table.add_column(f"ratio of {arm}")
    table.add_column(f"tokens as {ours[0]}")
    for cells, listed in figures.items():
        for figure in listed:
            if figure.tok_s is None:
                table.add_row(format_cells(cells), figure.arm, "failed")
                continue
            table.add_row(
                format_cells(cells),
                figure.arm,
                show_spread(figure.tok_s),
                *(f"{show_spread(ratio, 2)}x" for ratio in figure.ratios.values()),
                f"{figure.agreeing} of {new}",
            )
    return table
