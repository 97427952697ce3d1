"""`strata bench`: what a part of the engine takes on this device."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from strata.cli.console import err, fail_cleanly, say, show_table
from strata.cli.json_file import check_json_target, write_json
from strata.config import MAX_DRAFTS, Selection
from strata.errors import UsageError
from strata.openmp import calm
from strata.units import format_bytes, parse_bytes, parse_cells

MIN_SAMPLES = 5
MIN_PAGE_BYTES = 256

app = typer.Typer(
    name="bench",
    help="Measure a part of the engine on this machine.",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    pass


@app.command(epilog="Example: strata bench gather --page-bytes 16KiB --pages 1,16,256 --json -")
@fail_cleanly()
def gather(
    page_bytes: Annotated[
        str, typer.Option(metavar="SIZES", help="Page sizes, separated by commas.")
    ] = "4KiB,16KiB,64KiB",
    pages: Annotated[
        str, typer.Option(metavar="COUNTS", help="Pages a call, separated by commas.")
    ] = "0,1,4,16,64,128,256,1024",
    samples: Annotated[
        int, typer.Option(min=MIN_SAMPLES, help="Samples a figure is the median of.")
    ] = MIN_SAMPLES,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write one JSON object; '-' is stdout."),
    ] = None,
) -> None:
    """Time the copy of pages from pinned host memory into slots, inside a captured graph.

    Page lists and their length are read from device memory, as in a round. Beside it, in the same
    run, a plain copy of pinned memory.
    """
    sizes = [_page_bytes(word) for word in page_bytes.split(",")]
    counts = [_count(word, name="--pages") for word in pages.split(",")]
    check_json_target(json_file)
    import torch

    from strata.bench.gather import measure_gather, plain_copy_gb_per_s
    from strata.bench.timing import require_gpu

    device = require_gpu("strata bench gather")
    plain = plain_copy_gb_per_s(samples)
    table = Table("page", "pages", "us a call", "min-max", "GB/s", "of a plain copy")
    figures: list[dict[str, Any]] = []
    for figure in measure_gather(sizes, counts, samples):
        t, rate = figure.timing, figure.gb_per_s
        figures.append(
            {
                "page_bytes": figure.page_bytes,
                "pages": figure.pages,
                "us": t.us,
                "min_us": t.min_us,
                "max_us": t.max_us,
                "gb_per_s": rate,
                "plain_copy_ratio": rate / plain,
            }
        )
        table.add_row(
            format_bytes(figure.page_bytes),
            str(figure.pages),
            f"{t.us:.1f}",
            f"{t.min_us:.1f}-{t.max_us:.1f}",
            f"{rate:.1f}",
            f"{rate / plain:.0%}",
        )
    name = torch.cuda.get_device_name(device)
    if json_file != "-":
        show_table(table)
        say(f"{name}: a plain copy of pinned memory moves {plain:.1f} GB/s")
    if json_file is not None:
        result = {"bench": "gather", "device": name, "samples": samples}
        write_json(json_file, {**result, "plain_copy_gb_per_s": plain, "figures": figures})


@app.command(epilog="Example: strata bench evict --depth 16K --select 1024 --spec 1 --json -")
@fail_cleanly()
def evict(
    depth: Annotated[str, typer.Option(metavar="CELLS", help="Cells of the prompt.")] = "8K",
    select: Annotated[
        str, typer.Option(metavar="CELLS|depth/N", help="Cells that a query row reads.")
    ] = "512",
    spec: Annotated[int, typer.Option(min=0, max=MAX_DRAFTS, help="Drafts a round.")] = 0,
    max_new: Annotated[int, typer.Option(min=32, help="New tokens.")] = 128,
    seed: Annotated[int, typer.Option(min=0, help="Which bundled passage.")] = 0,
    multiples: Annotated[
        str, typer.Option(metavar="COUNTS", help="Rings, in selections.")
    ] = "1,2,4,8,16",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write one JSON object; '-' is stdout."),
    ] = None,
) -> None:
    """Replay the selections of one continuation through clock, LRFU, LRU and Belady's optimum.

    Hit rate by ring, right behind the prompt (16 resolves a layer) and after, with the ring
    seeded by the prompt and without.
    """
    cells = parse_cells(depth, name="--depth")
    counts = [_count(word, name="--multiples", least=1) for word in multiples.split(",")]
    selection = Selection.parse(select)
    if selection.is_dense:
        raise UsageError("--select: 0 reads everything, so nothing is ever evicted")
    check_json_target(json_file)
    calm()
    from dataclasses import asdict

    from strata.bench.evict import replay
    from strata.bench.trace import record
    from strata.device import every_core
    from strata.lm import bundled_model_path, load_model
    from strata.passages import load_passage

    model = load_model(bundled_model_path(), device)
    ids = load_passage(f"{cells}:{seed}", model.tokenizer)
    with every_core(), err.status("recording one continuation"):
        trace = record(model, ids, selection=selection, drafts=spec, max_new=max_new)
    if not any(trace.resolves):
        raise UsageError(f"--select {select} reads all of {cells} cells; name fewer")
    with err.status("replaying"):
        figures = list(replay(trace, counts))
    if json_file != "-":
        table = Table(
            "ring", "selections", "policy", "seeded: first", "after", "not: first", "after"
        )
        for seeded, plain in zip(figures[::2], figures[1::2], strict=True):
            rates = [seeded.first_ratio, seeded.rest_ratio, plain.first_ratio, plain.rest_ratio]
            table.add_row(
                str(seeded.ring_cells),
                f"{seeded.multiple}x",
                seeded.policy,
                *(f"{rate:.1%}" for rate in rates),
            )
        show_table(table)
    if json_file is not None:
        facts = {"bench": "evict", "depth": cells, "select": select, "spec": spec, "seed": seed}
        write_json(json_file, {**facts, "figures": [asdict(figure) for figure in figures]})


def _page_bytes(word: str) -> int:
    size = parse_bytes(word, name="--page-bytes")
    if size < MIN_PAGE_BYTES or size % MIN_PAGE_BYTES:
        raise UsageError(
            f"--page-bytes: {word.strip()!r} is not a multiple of {MIN_PAGE_BYTES} bytes, "
            "one cell of 64 dimensions"
        )
    return size


def _count(word: str, *, name: str, least: int = 0) -> int:
    count = parse_cells(word, name=name)
    if not least <= count <= 1 << 16:
        raise UsageError(f"{name}: {word.strip()!r} is outside {least} to {1 << 16}")
    return count
