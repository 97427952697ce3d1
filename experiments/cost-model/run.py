"""Judge the cost model on a sweep of experiments/trade/run.py; print Markdown tables.

    python experiments/cost-model/run.py experiments/trade/results.jsonl

Everything that is predicted was left out of what the predictor saw: a whole depth, or a whole
ring, with its page misses, its expert misses and its acceptance.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from grid import read_grid

from strata.models.acceptance import Acceptance
from strata.models.choice import left_out_choices, summarise_choices
from strata.models.evaluate import (
    Axis,
    configurations,
    coverage,
    finished,
    left_out,
    left_out_errors,
    silence,
    summarise,
)
from strata.models.features import Features
from strata.models.latency import RoundTime

AXES: dict[Axis, str] = {"depth_cells": "depth", "pool_cells": "ring"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--context", choices=["own", "shared"], default="own")
    parser.add_argument("--default-ring", type=int, default=32_768)
    parser.add_argument("--confidence", type=float, default=0.9)
    args = parser.parse_args()
    frame = finished(read_grid(args.results, context=args.context))
    print(f"{len(frame)} configurations on {frame['passage'].nunique()} passages\n")
    print(markdown(error_table(frame)))
    print("\n" + markdown(miss_table(frame)))
    print("\n" + markdown(price_table(frame)))
    print("\n" + markdown(choice_table(frame, args.default_ring)))
    print("\n" + markdown(coverage_table(frame, args.confidence)))
    found = silence(frame)
    print(f"\nBeyond the measured depths: no evidence {found.silent} of {found.asked} times.")


def error_table(frame: pd.DataFrame) -> pd.DataFrame:
    parts = []
    for axis, words in AXES.items():
        table = summarise(left_out_errors(frame, axis))
        parts.append(table.assign(**{"left out": words}))
    table = pd.concat(parts)
    return pd.DataFrame(
        {
            "left out": table["left out"],
            "method": table["method"],
            "configurations": table["configurations"],
            "mean error": table["mean_abs_error"].map("{:.1%}".format),
            "largest": table["max_abs_error"].map("{:.1%}".format),
            "rank correlation": table["rank_correlation"].map("{:.3f}".format),
        }
    )


def miss_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how well the misses themselves are predicted where they were left out."""
    rows = []
    for axis, words in AXES.items():
        gaps: dict[str, list[float]] = {"pages": [], "experts": []}
        for train, test in left_out(frame, axis):
            features = Features.learn(train)
            tokens = Acceptance.learn(train).tokens_per_round(test)
            rounds = test["rounds"].to_numpy(dtype=float)
            pages = features.missed_cells(test, tokens) / test["page_cells"].to_numpy(dtype=float)
            gaps["pages"] += list(pages - test["kv_misses"] / rounds)
            gaps["experts"] += list(features.missed_experts(test) - test["expert_misses"] / rounds)
        for what, found in gaps.items():
            rows.append(
                {
                    "left out": words,
                    "misses a round": what,
                    "mean absolute error": f"{np.mean(np.abs(found)):.1f}",
                    "bias": f"{np.mean(found):+.1f}",
                    "mean measured": f"{_mean_misses(frame, what):.1f}",
                }
            )
    return pd.DataFrame(rows)


def _mean_misses(frame: pd.DataFrame, what: str) -> float:
    column = {"pages": "kv_misses", "experts": "expert_misses"}[what]
    return float((frame[column] / frame["rounds"]).mean())


def price_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what the model pays for, in the mean round without and with the drafter."""
    part = RoundTime.learn(frame)
    asked = configurations(frame)
    tokens = part.acceptance.tokens_per_round(asked)
    paid = pd.DataFrame(
        part.features.matrix(asked, tokens) * part.regression.coef_, columns=list(part.prices_s)
    )
    means = 1e6 * paid.groupby(asked["mode"].to_numpy()).mean()
    return pd.DataFrame(
        {
            "feature": list(part.prices_s),
            "price of a unit, ns": [f"{1e9 * price:.3g}" for price in part.prices_s.values()],
            **{f"us of a round, drafter {mode}": means.loc[mode].map("{:.0f}".format).tolist()
               for mode in means.index},
        }
    )  # fmt: skip


def choice_table(frame: pd.DataFrame, default_ring: int) -> pd.DataFrame:
    table = summarise_choices(left_out_choices(frame, default_ring))
    return pd.DataFrame(
        {
            "policy": table["policy"],
            "mean loss": table["mean_pct"].map("{:.2f} %".format),
            "worst": table["worst_pct"].map("{:.2f} %".format),
            "places": table["entries"],
            "not measured": table["not_measured"],
        }
    )


def coverage_table(frame: pd.DataFrame, confidence: float) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "interval": f"{found.quantity}, {confidence:.0%}",
                "held": f"{found.hits} of {found.draws}",
                "documents": found.documents,
                "95 % over documents": f"{found.lower:.0%} to {found.upper:.0%}",
                "p": f"{found.p_value:.2f}",
            }
            for found in coverage(frame, confidence=confidence)
        ]
    )


def markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown."""
    lines = ["| " + " | ".join(map(str, table.columns)) + " |", "| --- " * len(table.columns) + "|"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in table.itertuples(index=False)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
