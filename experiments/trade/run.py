"""Rounds a second against the ring under a memory budget: does the trade exist?

    python experiments/trade/run.py --out experiments/trade/results.jsonl

One held-out passage a depth, selection fixed, W fixed, so that tokens and rounds are the same for
every ring of a mode and only their speed differs; a run whose tokens differ is marked. Each
configuration is a session of its own: prompt, one generation that captures the graphs, then
`REPEATS` generations from the state behind the prompt (median, min, max).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.errors import BudgetError
from strata.lm import LanguageModel, bundled_model_path, load_model
from strata.passages import load_passage
from strata.session import create_session

REPEATS = 3
RINGS = (2_304, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576)


def measure(
    model: LanguageModel, ids: list[int], knobs: dict[str, Any], new: int
) -> dict[str, Any]:
    config = SessionConfig(
        kv=KvConfig(resident_cells=knobs["ring"], selection=Selection.parse(str(knobs["select"]))),
        spec=SpecConfig(drafts=knobs["drafts"], window_cells=knobs["window"]),
        vram_budget_bytes=knobs["budget_mib"] << 20,
    )
    session = create_session(model, config, prompt_cells=len(ids), max_new=new, environ={})
    session.prefill(ids)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=bundled_model_path())
    parser.add_argument("--device", default="auto")
    parser.add_argument("--depths", type=int, nargs="+", default=[8_192, 32_768, 131_072])
    parser.add_argument("--budgets", type=int, nargs="+", default=[40, 48, 64], help="MiB")
    parser.add_argument("--rings", type=int, nargs="+", default=list(RINGS))
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 3])
    parser.add_argument("--select", default="2048")
    parser.add_argument("--window", type=int, default=4_096)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop starting runs after this")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model = load_model(args.model, args.device)
    start, hashes = time.monotonic(), {}
    with args.out.open("a", encoding="utf-8") as out:
        for budget in args.budgets:
            for depth in args.depths:
                ids = load_passage(f"{depth}:{args.seed}", model.tokenizer)
                for drafts in args.drafts:
                    for ring in args.rings:
                        if time.monotonic() - start > args.seconds:
                            print("out of time")
                            return
                        knobs = {
                            "budget_mib": budget,
                            "depth": depth,
                            "drafts": drafts,
                            "ring": ring,
                            "select": args.select,
                            "window": args.window,
                            "seed": args.seed,
                            "new": args.new,
                        }
                        try:
                            result = measure(model, ids, knobs, args.new)
                            first = hashes.setdefault((depth, drafts > 0), result["token_hash"])
                            result["same_tokens"] = first == result["token_hash"]
                        except BudgetError as error:
                            result = {"error": str(error)}
                        out.write(json.dumps({**knobs, **result}) + "\n")
                        out.flush()
                        brief = {
                            k: v for k, v in result.items() if k not in ("ledger", "token_hash")
                        }
                        print(json.dumps({**knobs, **brief}), flush=True)


if __name__ == "__main__":
    main()
