"""`strata bench gather`: the page copy inside a captured graph."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from strata.cli.bench import options as opt
from strata.cli.bench.report import progress
from strata.cli.console import fail_cleanly, say, show_table
from strata.cli.json_file import check_json_target, write_json
from strata.errors import UsageError
from strata.units import format_bytes, parse_bytes

NAME = "gather"
EPILOG = "Example: strata bench gather --page-bytes 16KiB --pages 1,16,256 --json -"
MIN_PAGE_BYTES = 256


@fail_cleanly()
def command(
    page_bytes: Annotated[
        str, typer.Option(metavar="SIZES", help="Page sizes, separated by commas.")
    ] = "4KiB,16KiB,64KiB",
    pages: Annotated[
        str, typer.Option(metavar="COUNTS", help="Pages a call, separated by commas.")
    ] = "0,1,4,16,64,128,256,1024",
    samples: Annotated[
        int, typer.Option(min=opt.DEFAULT_REPEATS, help="Samples a figure is the median of.")
    ] = opt.DEFAULT_REPEATS,
    json_file: opt.Json = None,
) -> None:
    """Time the copy of pages from pinned host memory into slots, inside a captured graph.

    Page lists and their length are read from device memory, as in a round. Beside it, in the same
    run, a plain copy of pinned memory.
    """
    sizes = opt.parse_list(page_bytes, _page_bytes)
    counts = opt.parse_list(pages, lambda word: opt.parse_count(word, name="--pages"))
    check_json_target(json_file)
    import torch

    from strata.bench.gather import measure_gather, plain_copy_gb_per_s
    from strata.bench.timing import require_gpu

    device = require_gpu("strata bench gather")
    plain = plain_copy_gb_per_s(samples)
    table = Table("page", "pages", "us a call", "min-max", "GB/s", "of a plain copy")
    figures: list[dict[str, Any]] = []
    with progress("gather", len(sizes) * len(counts)) as step:
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
            step()
    name = torch.cuda.get_device_name(device)
    if json_file != "-":
        show_table(table)
        say(f"{name}: a plain copy of pinned memory moves {plain:.1f} GB/s")
    if json_file is not None:
        result = {"bench": NAME, "device": name, "samples": samples}
        write_json(json_file, {**result, "plain_copy_gb_per_s": plain, "figures": figures})


def _page_bytes(word: str) -> int:
    size = parse_bytes(word, name="--page-bytes")
    if size < MIN_PAGE_BYTES or size % MIN_PAGE_BYTES:
        raise UsageError(
            f"--page-bytes: {word.strip()!r} is not a multiple of {MIN_PAGE_BYTES} bytes, "
            "one cell of 64 dimensions"
        )
    return size
