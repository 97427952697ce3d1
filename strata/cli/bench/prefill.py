"""`strata bench prefill`: prompt tokens/s and the time to the first token by depth and budget."""

from __future__ import annotations

from dataclasses import asdict

from rich.table import Table

from strata.cli import session_options as session_opt
from strata.cli.bench import options as opt
from strata.cli.bench.report import check, progress, show_spread
from strata.cli.console import fail_cleanly, say, show_table
from strata.cli.json_file import check_json_target, write_json
from strata.openmp import calm
from strata.units import format_bytes, format_cells

NAME = "prefill"
EPILOG = "Example: strata bench prefill --depth 1K,8K --vram-budget none,64MiB --json -"


@fail_cleanly()
def command(
    depth: opt.Depths = "1K,4K",
    vram_budget: opt.Budgets = "none",
    spec: session_opt.Spec = None,
    repeats: opt.Repeats = opt.DEFAULT_REPEATS,
    seed: opt.Seed = 0,
    model: opt.Model = None,
    device: opt.Device = "auto",
    json_file: opt.Json = None,
) -> None:
    """Prompt tokens/s and the time to the first token, by depth and budget.

    Every repeat creates a session from nothing, so the first token's time holds what reserving
    memory and capturing rounds take.
    """
    depths = opt.parse_list(depth, opt.parse_depth)
    budgets = opt.parse_list(vram_budget, opt.parse_budget)
    config = session_opt.session_config(spec=spec)
    check_json_target(json_file)
    calm()
    from strata.bench.prefill import measure_prefill
    from strata.device import device_name, set_decode_threads
    from strata.lm import bundled_model_path, load_model

    set_decode_threads(None)
    loaded = load_model(model or bundled_model_path(), device)
    check(loaded, selected=False, pooled=any(budget is not None for budget in budgets))
    with progress("prefill", len(depths) * len(budgets) * (repeats + 1)) as step:
        figures = list(
            measure_prefill(
                loaded, depths, budgets, config, repeats=repeats, seed=seed, on_step=step
            )
        )
    name = device_name(loaded.device)
    if json_file != "-":
        columns = ("depth", "budget", "ring", "expert slots", "prompt tok/s")
        table = Table(*columns, "first token ms", "of it the session", "of it behind the prompt")
        for f in figures:
            table.add_row(
                format_cells(f.depth),
                "none" if f.budget_bytes is None else format_bytes(f.budget_bytes),
                str(f.ring_cells),
                str(f.expert_slots),
                show_spread(f.prompt_tok_s),
                show_spread(f.ttft_ms, 1),
                show_spread(f.session_ms, 1),
                show_spread(f.first_token_ms, 1),
            )
        show_table(table)
        say(f"{name}: median (least-most) of {repeats} sessions made from nothing")
    if json_file is not None:
        facts = {"bench": NAME, "device": name, "model_hash": loaded.model_hash, "seed": seed}
        facts |= {"repeats": repeats}
        write_json(json_file, {**facts, "figures": [asdict(figure) for figure in figures]})
