"""Compare pairs that shared a process with the same pairs, each in a process of its own.

    python experiments/h200-campaign/isolation.py worker.jsonl process.jsonl

A pair is found again by its tier, mode, ring and passage. Printed are the difference of its log
ratio (the ring over the default ring) and of its default ring's rounds/s, one minus the other, with
95 % t intervals over documents: the first says whether isolation moves a verdict, the second
whether it moves a speed. Files may be compressed (.xz).
"""

from __future__ import annotations

import argparse
import json
import lzma
from pathlib import Path

import numpy as np
import pandas as pd

from strata.models.bench import document_of
from strata.models.frame import COLUMNS, pair_table
from strata.models.inference import mean_bounds

PLACE = ["tier_cells", "mode", "ring_cells", "passage"]
ALPHA = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("worker", type=Path)
    parser.add_argument("process", type=Path)
    args = parser.parse_args()
    one, other = pairs_of(args.worker), pairs_of(args.process)
    both = one.add_suffix("_worker").join(other.add_suffix("_process"), how="inner").reset_index()
    print(f"{len(both)} pairs in both, of {len(one)} and {len(other)}\n")
    print("| mode | pairs | documents | what | worker over process | 95 % | sd of a pair |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for mode, mine in [*both.groupby("mode"), ("both", both)]:
        for words, column in (("gain of the ring", "log_ratio"), ("default ring", "log_default")):
            gap = mine[f"{column}_worker"] - mine[f"{column}_process"]
            means = gap.groupby(mine["passage"].map(document_of)).mean().to_numpy(dtype=float)
            low, high = mean_bounds(means, ALPHA / 2)
            print(
                f"| {mode} | {len(gap)} | {len(means)} | {words} | {np.expm1(means.mean()):+.2%} | "
                f"{np.expm1(low):+.2%} to {np.expm1(high):+.2%} | {gap.std(ddof=1):.2%} |"
            )


def pairs_of(path: Path) -> pd.DataFrame:
    """Return the log ratio and the default ring's log rounds/s of each finished pair, by PLACE."""
    read = lzma.open if path.suffix == ".xz" else open
    with read(path, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    runs = [one for one in records if "trial_id" in one and one.get("purpose") == "decode"]
    frame = pd.DataFrame(runs).reindex(columns=list(COLUMNS))
    pairs = pair_table(frame)
    default = frame[(frame["arm"] == "default") & (frame["kind"] == "ok")]
    speeds = np.log(default["rounds_per_s"].astype(float)).groupby(default["pair_id"]).mean()
    pairs = pairs[pairs["kind"] == "ok"].assign(log_default=lambda t: t["pair_id"].map(speeds))
    return pairs.set_index(PLACE)[["log_ratio", "log_default"]]


if __name__ == "__main__":
    main()
