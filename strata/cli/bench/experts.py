"""`strata bench experts`: routed product and in-graph fetch of experts by rows and misses."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from strata.cli.bench import options as opt
from strata.cli.bench.report import progress
from strata.cli.console import err, fail_cleanly, say, show_table
from strata.cli.json_file import check_json_target, write_json
from strata.config import MAX_ROWS
from strata.units import format_bytes

NAME = "experts"
EPILOG = "Example: strata bench experts --rows 1,4 --misses 0,1,4 --json -"


@fail_cleanly()
def command(
    rows: Annotated[
        str, typer.Option(metavar="COUNTS", help=f"Rows of a window, 1 to {MAX_ROWS}.")
    ] = "1,2,4,8",
    misses: Annotated[
        str, typer.Option(metavar="COUNTS", help="Experts of a window that are not in a slot.")
    ] = "0,1,2,4,8",
    samples: Annotated[
        int, typer.Option(min=opt.DEFAULT_REPEATS, help="Samples a figure is the median of.")
    ] = opt.DEFAULT_REPEATS,
    model: opt.Model = None,
    json_file: opt.Json = None,
) -> None:
    """Time the routed product and the fetch of experts inside a captured graph.

    `product` multiplies experts where they lie, its misses in host memory; `fetch` resolves a
    window's experts and brings the missing ones in. Sizes are those of the model.
    """
    windows = opt.parse_list(
        rows, lambda word: opt.parse_count(word, name="--rows", least=1, most=MAX_ROWS)
    )
    counts = opt.parse_list(misses, lambda word: opt.parse_count(word, name="--misses"))
    check_json_target(json_file)
    import torch

    from strata.bench.experts import expert_bytes, measure_experts
    from strata.bench.selfcheck import check_kernels
    from strata.bench.timing import require_gpu
    from strata.lm import bundled_model_path
    from strata.lm.config import load_config

    device = require_gpu("strata bench experts")
    config = load_config(model or bundled_model_path())
    with err.status("checking against the references"):
        check_kernels(config, device, torch.bfloat16, ["experts", "gather", "resolve"])
    figures = []
    with progress("experts", 2 * len(windows) * len(counts)) as step:
        for figure in measure_experts(config, windows, counts, samples):
            figures.append(figure)
            step()
    name = torch.cuda.get_device_name(device)
    if json_file != "-":
        table = Table("op", "rows", "misses", "us a call", "min-max", "GB/s")
        for figure in figures:
            t = figure.timing
            table.add_row(
                figure.op,
                str(figure.rows),
                f"{figure.misses:.1f}",
                f"{t.us:.1f}",
                f"{t.min_us:.1f}-{t.max_us:.1f}",
                f"{figure.gb_per_s:.1f}" if figure.misses else "-",
            )
        show_table(table)
        say(f"{name}: an expert is {format_bytes(expert_bytes(config))}")
    if json_file is not None:
        facts = {"bench": NAME, "device": name, "samples": samples}
        listed = [
            {
                "op": f.op,
                "rows": f.rows,
                "misses": f.misses,
                "us": f.timing.us,
                "min_us": f.timing.min_us,
                "max_us": f.timing.max_us,
                "gb_per_s": f.gb_per_s,
            }
            for f in figures
        ]
        write_json(json_file, {**facts, "expert_bytes": expert_bytes(config), "figures": listed})
