"""`strata bench evict`: hit rate by ring of victim policies over one recorded continuation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from strata.cli.bench import options as opt
from strata.cli.bench.report import progress
from strata.cli.console import fail_cleanly, say, show_table
from strata.cli.json_file import check_json_target, write_json
from strata.config import MAX_DRAFTS, Selection
from strata.errors import UsageError
from strata.openmp import calm

if TYPE_CHECKING:
    from strata.bench.evict import HitRate

NAME = "evict"
EPILOG = "Example: strata bench evict --depth 16K --select 1024 --spec 1 --json -"


@fail_cleanly()
def command(
    depth: Annotated[str, typer.Option(metavar="CELLS", help="Cells of the prompt.")] = "8K",
    select: Annotated[
        str, typer.Option(metavar="CELLS|depth/N", help="Cells that a query row reads.")
    ] = "512",
    spec: Annotated[int, typer.Option(min=0, max=MAX_DRAFTS, help="Drafts a round.")] = 0,
    max_new: Annotated[
        int, typer.Option(min=96, help="New tokens; 320 are 256 and the 64 rounds behind them.")
    ] = 320,
    multiples: Annotated[
        str, typer.Option(metavar="COUNTS", help="Rings, in selections.")
    ] = "1,2,4,8,16",
    seed: opt.Seed = 0,
    model: opt.Model = None,
    device: opt.Device = "auto",
    json_file: opt.Json = None,
) -> None:
    """Replay the selections of one continuation through clock, LRFU, LRU and Belady's optimum.

    Hit rate by ring, in the first 32 rounds behind the prompt and in the last 64, with the ring
    seeded by the prompt and without.
    """
    cells = opt.parse_depth(depth)
    counts = opt.parse_list(
        multiples, lambda word: opt.parse_count(word, name="--multiples", least=1)
    )
    selection = Selection.parse(select)
    if selection.is_dense:
        raise UsageError("--select: 0 reads everything, so nothing is ever evicted")
    check_json_target(json_file)
    calm()
    from dataclasses import asdict

    from strata.bench.evict import POLICIES, replay
    from strata.bench.trace import record
    from strata.device import device_name, every_core
    from strata.lm import bundled_model_path, load_model
    from strata.passages import load_passage

    loaded = load_model(model or bundled_model_path(), device)
    ids = load_passage(f"{cells}:{seed}", loaded.tokenizer)
    with every_core(), progress("recording", cells + max_new) as step:
        trace = record(loaded, ids, selection=selection, drafts=spec, max_new=max_new, on_step=step)
    if not any(trace.resolves):
        raise UsageError(f"--select {select} reads all of {cells} cells; name fewer")
    figures = []
    with progress("replaying", len(counts) * len(POLICIES) * 2) as step:
        for figure in replay(trace, counts):
            figures.append(figure)
            step()
    rounds = len(trace.resolves[0])
    if json_file != "-":
        show_table(_table(figures))
        say(f"{device_name(loaded.device)}: {rounds} rounds at {cells} cells, selection {select}")
    if json_file is not None:
        facts = {"bench": NAME, "device": device_name(loaded.device), "depth": cells}
        facts |= {"select": select, "spec": spec, "seed": seed, "rounds": rounds}
        write_json(json_file, {**facts, "figures": [asdict(figure) for figure in figures]})


def _table(figures: list[HitRate]) -> Table:
    """Return seeded and not seeded side by side, a row for each ring and policy."""
    table = Table("ring", "selections", "policy")
    for column in ("seeded: first 32", "last 64", "not seeded: first 32", "last 64"):
        table.add_column(column, justify="right")
    for seeded, plain in zip(figures[::2], figures[1::2], strict=True):
        rates = [seeded.first_ratio, seeded.last_ratio, plain.first_ratio, plain.last_ratio]
        table.add_row(
            str(seeded.ring_cells),
            f"{seeded.multiple}x",
            seeded.policy,
            *(f"{rate:.1%}" for rate in rates),
        )
    return table
