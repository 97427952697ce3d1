"""Rounds a second against the ring under a memory budget: does the trade exist?

    python experiments/trade/run.py --out experiments/trade/results.jsonl

Held-out passages, selection fixed, W fixed, so that tokens and rounds are the same for every ring
of a mode and only their speed differs; a run whose tokens differ is marked. A passage's prompt runs
once and is parked. Each configuration is a session of its own, restored from there: one generation
that captures the graphs, then `REPEATS` generations (median, min, max). Configurations of a passage
come in an order drawn by its seed, so that a drift of the machine is not a ring's.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.errors import BudgetError
from strata.lm import LanguageModel, bundled_model_path, load_model
from strata.parked import Parked
from strata.passages import load_passage
from strata.session import create_session

REPEATS = 5
SHARED_CELLS = 132_096
"""Max context of a served conversation, whatever its prompt; `own` is what a run needs."""
RINGS = (2_304, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576)


def park_prompt(model: LanguageModel, ids: list[int], new: int, *, drafting: bool) -> Parked:
    """Run a prompt in a session without a budget; what it leaves fits every other session."""
    config = SessionConfig(
        kv=KvConfig(resident_cells=0), spec=SpecConfig(drafts=int(drafting), window_cells=0)
    )
    session = create_session(model, config, prompt_cells=len(ids), max_new=new, environ={})
    session.prefill(ids)
    parked = session.park()
    session.close()
    return parked


def measure(model: LanguageModel, parked: Parked, knobs: dict[str, Any]) -> dict[str, Any]:
    config = SessionConfig(
        kv=KvConfig(resident_cells=knobs["ring"], selection=Selection.parse(str(knobs["select"]))),
        spec=SpecConfig(drafts=knobs["drafts"], window_cells=knobs["window"]),
        vram_budget_bytes=knobs["budget_mib"] << 20,
        max_context_cells=SHARED_CELLS if knobs["context"] == "shared" else None,
    )
    new = knobs["new"]
    session = create_session(
        model, config, prompt_cells=parked.prompt_cells, max_new=new, environ={}
    )
    session.restore(parked)
    params = SamplingParams(max_new=new, ignore_eos=True)
    session.generate(params)
    runs = []
    for _ in range(REPEATS):
        session.rewind()
        runs.append(session.generate(params))
    rates = [run.rounds_per_s or 0.0 for run in runs]
    last = runs[-1]
    result = {
        "pool": session.decision.pool_cells,
        "expert_slots": session.expert_slots,
        "rounds_s": {"median": statistics.median(rates), "min": min(rates), "max": max(rates)},
        "tokens_round": last.tokens_per_round,
        "rounds": last.rounds,
        "accepted": list(last.accepted),
        "drafted": list(last.drafted),
        "page_lookups_a_round": last.kv.lookups / max(last.rounds, 1),
        "expert_lookups_a_round": last.experts.lookups / max(last.rounds, 1),
        "page_misses_a_round": last.kv.misses / max(last.rounds, 1),
        "pages_in_place_a_round": last.kv.overflows / max(last.rounds, 1),
        "expert_misses_a_round": last.experts.misses / max(last.rounds, 1),
        "token_hash": last.token_hash,
        "ledger": session.ledger,
    }
    session.close()
    return result


def configurations(args: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """Return the knobs of every session of a passage, in an order that `seed` draws."""
    grid = [
        {"budget_mib": budget, "drafts": drafts, "ring": ring}
        for budget in args.budgets
        for drafts in args.drafts
        for ring in args.rings
    ]
    random.Random(seed).shuffle(grid)
    return grid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=bundled_model_path())
    parser.add_argument("--device", default="auto")
    parser.add_argument("--depths", type=int, nargs="+", default=[8_192, 32_768, 131_072])
    parser.add_argument("--budgets", type=int, nargs="+", default=[40, 48, 64], help="MiB")
    parser.add_argument("--rings", type=int, nargs="+", default=list(RINGS))
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 3])
    parser.add_argument("--select", default="2048")
    parser.add_argument("--context", choices=["own", "shared"], default="own")
    parser.add_argument("--window", type=int, default=4_096)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="passages a depth")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop starting runs after this")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model = load_model(args.model, args.device)
    start, hashes = time.monotonic(), {}
    with args.out.open("a", encoding="utf-8") as out:
        for seed, depth in ((s, d) for s in args.seeds for d in args.depths):
            ids = load_passage(f"{depth}:{seed}", model.tokenizer)
            parked = park_prompt(model, ids, args.new, drafting=any(args.drafts))
            fixed = {
                "depth": depth,
                "seed": seed,
                "select": args.select,
                "window": args.window,
                "context": args.context,
            }
            for chosen in configurations(args, seed):
                if time.monotonic() - start > args.seconds:
                    print("out of time")
                    return
                knobs = {**fixed, **chosen, "new": args.new}
                try:
                    result = measure(model, parked, knobs)
                    key = (depth, seed, chosen["drafts"] > 0)
                    first = hashes.setdefault(key, result["token_hash"])
                    result["same_tokens"] = first == result["token_hash"]
                except BudgetError as error:
                    result = {"error": str(error)}
                out.write(json.dumps({**knobs, **result}) + "\n")
                out.flush()
                brief = {k: v for k, v in result.items() if k not in ("ledger", "token_hash")}
                print(json.dumps({**knobs, **brief}), flush=True)


if __name__ == "__main__":
    main()
