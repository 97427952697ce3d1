"""Leave out the pairs that something else disturbed, to be measured again by the same command.

    python experiments/h200-campaign/disturbed.py trials.jsonl kept.jsonl

The default ring runs in every pair, so a passage has it many times over. A pair is disturbed where
its default ring, in either of its two runs, was slower than the median of the passage's default
runs by more than the limit: the machine was busy then, whatever the arm. The arm's own speed is
never looked at, so that nothing is left out for what it says. What is left out is printed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

LIMIT = 0.04
"""Log of a slowdown; undisturbed default runs of a passage lie within half a percent."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trials", type=Path)
    parser.add_argument("kept", type=Path)
    args = parser.parse_args()
    lines = args.trials.read_text(encoding="utf-8").splitlines()
    runs = [json.loads(line) for line in lines]
    gone = disturbed([run for run in runs if "trial_id" in run])
    for run in runs:
        if run.get("pair_id") in gone and run.get("position") == 0:
            lost = -math.expm1(-gone[run["pair_id"]])
            print(f"{run['passage']} {run['mode']} at {run['started_at']}: {lost:.0%} slower")
    pairs = len({run["pair_id"] for run in runs if "trial_id" in run})
    print(f"{len(gone)} of {pairs} pairs left out")
    kept = [line for line, run in zip(lines, runs, strict=True) if run.get("pair_id") not in gone]
    args.kept.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


def disturbed(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return the log slowdown of each disturbed pair."""
    default = [run for run in runs if run["arm"] == "default" and run["kind"] == "ok"]
    logs = defaultdict[tuple[int, str, str], list[float]](list)
    for run in default:
        logs[place(run)].append(math.log(run["rounds_per_s"]))
    usual = {where: statistics.median(found) for where, found in logs.items()}
    gone: dict[str, float] = {}
    for run in default:
        slower = usual[place(run)] - math.log(run["rounds_per_s"])
        if slower > LIMIT:
            gone[run["pair_id"]] = max(slower, gone.get(run["pair_id"], 0.0))
    return gone


def place(run: dict[str, Any]) -> tuple[int, str, str]:
    return run["tier_cells"], run["mode"], run["passage"]


if __name__ == "__main__":
    main()
