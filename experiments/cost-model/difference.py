"""Is the model's error below interpolation's by more than chance? Print Markdown.

    python experiments/cost-model/difference.py experiments/trade/results-2.jsonl

Configurations of one setting and depth hang together, so that whole places are drawn (bootstrap).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from grid import read_grid
from run import AXES, markdown

from strata.models.baselines import SETTING
from strata.models.evaluate import finished, left_out_errors

DRAWS, MODEL, RIVAL = 4_000, "cost model", "linear interpolation"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--context", choices=["own", "shared"], default="own")
    args = parser.parse_args()
    frame = finished(read_grid(args.results, context=args.context))
    rng = np.random.default_rng(0)
    rows = []
    for axis, words in AXES.items():
        errors = left_out_errors(frame, axis)
        errors = errors.assign(size=errors["error"].abs())
        place = [*SETTING, "depth_cells"]
        table = errors.pivot_table(
            index=[*place, "ring_cells"], columns="method", values="size", dropna=False
        )
        table = table.dropna(how="all").reset_index()
        gap = (table[MODEL] - table[RIVAL]).to_numpy()
        places = table.groupby(place, dropna=False).ngroup().to_numpy()
        parts = [gap[places == one] for one in np.unique(places)]
        means = [
            np.concatenate([parts[i] for i in rng.integers(len(parts), size=len(parts))]).mean()
            for _ in range(DRAWS)
        ]
        low, high = np.quantile(means, [0.025, 0.975])
        rows.append(
            {
                "left out": words,
                MODEL: f"{table[MODEL].mean():.1%}",
                RIVAL: f"{table[RIVAL].mean():.1%}",
                "difference, 95 %": f"{gap.mean():+.1%} [{low:+.1%}, {high:+.1%}]",
                "places": len(parts),
            }
        )
    print(markdown(pd.DataFrame(rows)))


if __name__ == "__main__":
    main()
