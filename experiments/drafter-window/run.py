"""Tokens a round and rounds a second against the drafter's window, by depth.

    python experiments/drafter-window/run.py --depths 1024 4096 16384 --out FILE
    python experiments/drafter-window/run.py --table FILE...

A passage's prompt runs once and is parked. Every window is a session of its own over a ring of the
whole context, restored from there, so that all of them continue the same text by the same tokens.
The first continuation of each counts what was accepted, and captures graphs on a GPU. `--repeats`
more are timed, in turn through the windows, in an order drawn anew each time. Seeds come before
depths, so a run that is out of time has whole passages.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.device import device_name, every_core, set_decode_threads
from strata.lm import LanguageModel, bundled_model_path, load_model
from strata.parked import Parked
from strata.passages import load_passage
from strata.session import Session, create_session

WINDOWS = (256, 512, 1_024, 2_048, 4_096, 8_192, 0)
"""Cells; 0 is all, which every other one is held against."""


def open_session(
    model: LanguageModel, args: argparse.Namespace, prompt_cells: int, window: int
) -> Session:
    """Return a session over a ring of the whole context that drafts with `window`."""
    config = SessionConfig(
        kv=KvConfig(resident_cells=0, selection=Selection.parse(args.select)),
        spec=SpecConfig(drafts=args.drafts, window_cells=window),
    )
    return create_session(model, config, prompt_cells=prompt_cells, max_new=args.new, environ={})


def park_prompt(model: LanguageModel, args: argparse.Namespace, ids: list[int]) -> Parked:
    """Run a prompt with every core; its state does not depend on the window."""
    session = open_session(model, args, len(ids), 0)
    with every_core():
        session.prefill(ids)
    parked = session.park()
    session.close()
    return parked


def windows_of(depth: int, windows: list[int], new: int) -> list[int]:
    """Return the windows that differ at a depth: one that reaches the end of the run is all."""
    return [window for window in windows if window < depth + new]


def measure_passage(
    model: LanguageModel, args: argparse.Namespace, depth: int, seed: int
) -> list[dict[str, Any]]:
    """Return one row for each window of a passage."""
    parked = park_prompt(model, args, load_passage(f"{depth}:{seed}", model.tokenizer))
    params = SamplingParams(max_new=args.new, ignore_eos=True)
    windows = windows_of(depth, args.windows, args.new)
    sessions, rates, rows = {}, defaultdict(list), []
    for window in windows:
        sessions[window] = open_session(model, args, parked.prompt_cells, window)
        sessions[window].restore(parked)
        run = sessions[window].generate(params)
        rows.append(
            {
                "depth": depth,
                "seed": seed,
                "window": window,
                "drafts": args.drafts,
                "select": args.select,
                "device": device_name(model.device),
                "tokens_round": run.tokens_per_round,
                "rounds": run.rounds,
                "accepted": list(run.accepted),
                "drafted": list(run.drafted),
                "token_hash": run.token_hash,
            }
        )
    for repeat in range(args.repeats):
        order = random.Random(f"{depth}:{seed}:{repeat}").sample(windows, len(windows))
        for window in order:
            sessions[window].rewind()
            rates[window].append(sessions[window].generate(params).rounds_per_s or 0.0)
    for session in sessions.values():
        session.close()
    same = len({row["token_hash"] for row in rows}) == 1
    for row in rows:
        row["same_tokens"] = same
        row["rounds_s"] = [round(rate, 2) for rate in rates[row["window"]]]
    return rows


def report(rows: list[dict[str, Any]]) -> None:
    """Print by depth and window what was accepted and how fast, each beside the window of all."""
    by_place: dict[tuple[int, int], dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        passage = f"{row['depth']}:{row['seed']}:{row['drafts']}:{row['select']}:{row['device']}"
        by_place[row["depth"], row["window"]][passage] = row
    print("| depth | W | passages | tokens/round | beside all | rounds/s | beside all | tokens/s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for (depth, window), found in sorted(
        by_place.items(), key=lambda item: (item[0][0], -item[0][1])
    ):
        whole = by_place[depth, 0]
        accepted = [
            math.log(row["tokens_round"] / whole[name]["tokens_round"])
            for name, row in found.items()
            if name in whole
        ]
        timed = {
            name: statistics.median(row["rounds_s"])
            for name, row in found.items()
            if row["rounds_s"]
        }
        speeds = [
            math.log(rate / statistics.median(whole[name]["rounds_s"]))
            for name, rate in timed.items()
            if name in whole and whole[name]["rounds_s"]
        ]
        both = [
            math.log(found[name]["tokens_round"] / whole[name]["tokens_round"])
            + math.log(timed[name] / statistics.median(whole[name]["rounds_s"]))
            for name in timed
            if name in whole and whole[name]["rounds_s"]
        ]
        per_round = statistics.mean(row["tokens_round"] for row in found.values())
        rate = f"{statistics.median(timed.values()):.1f}" if timed else "-"
        print(
            f"| {depth} | {window or 'all'} | {len(found)} | {per_round:.3f} | {words(accepted)} "
            f"| {rate} | {words(speeds)} | {words(both)} |"
        )
    print(f"\nthe same tokens with every window: {all(row['same_tokens'] for row in rows)}")


def words(logs: list[float]) -> str:
    """Return the mean of log ratios as a gain, with its standard error."""
    if not logs:
        return "-"
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return f"{math.expm1(statistics.mean(logs)):+.1%} ± {error:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=bundled_model_path())
    parser.add_argument("--device", default="auto")
    parser.add_argument("--depths", type=int, nargs="+", default=[1_024, 4_096, 16_384])
    parser.add_argument("--windows", type=int, nargs="+", default=list(WINDOWS))
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--select", default="0")
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 3, 5], help="passages a depth")
    parser.add_argument("--repeats", type=int, default=3, help="timed continuations a window")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no passage after this")
    parser.add_argument("--out", type=Path, help="rows are added to it")
    parser.add_argument("--table", type=Path, nargs="+", help="print what such files hold, and end")
    args = parser.parse_args()
    if args.table:
        lines = [line for path in args.table for line in path.read_text("utf-8").splitlines()]
        report([json.loads(line) for line in lines])
        return
    if args.out is None:
        parser.error("--out is needed")
    set_decode_threads(None)
    model = load_model(args.model, args.device)
    start, rows = time.monotonic(), []
    with args.out.open("a", encoding="utf-8") as out:
        for seed, depth in ((s, d) for s in args.seeds for d in args.depths):
            if time.monotonic() - start > args.seconds:
                print("out of time")
                break
            for row in measure_passage(model, args, depth, seed):
                rows.append(row)
                out.write(json.dumps(row) + "\n")
            out.flush()
            print(f"{depth}:{seed} {time.monotonic() - start:.0f} s", flush=True)
    report(rows)


if __name__ == "__main__":
    main()
