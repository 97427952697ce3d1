"""Hold the estimate from a device profile against what the device measured; print Markdown.

    python experiments/cost-model/estimate.py experiments/trade/results.jsonl --profile h200

The estimate sees the profile, the checkpoint's sizes and the ledger. Two launch constants of
`strata.models.whatif` were revised after results-2.jsonl was seen; README.md has both figures.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from grid import read_grid
from run import markdown
from scipy import stats

from strata.cli.model_estimate import geometry_of
from strata.cli.model_ledger import Ask, Ledger, checkpoint_folder
from strata.config import Window
from strata.models.baselines import SETTING
from strata.models.device_profile import load_profile
from strata.models.evaluate import configurations, finished
from strata.models.whatif import Workload, estimate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--context", choices=["own", "shared"], default="own")
    parser.add_argument("--profile", default="h200")
    args = parser.parse_args()
    measured = configurations(finished(read_grid(args.results, context=args.context)))
    profile = load_profile(args.profile)
    ledger = Ledger.open(checkpoint_folder("bundled"), profile.kv_dtype)
    asks = [ask_of(row) for row in measured.to_dict("records")]
    pairs = zip(asks, measured["ring_cells"], strict=True)
    slots = [ledger.expert_slots(ask, int(ring)) for ask, ring in pairs]
    asked = measured.assign(
        expert_slots=pd.array(slots, dtype="Float64").to_numpy(float, na_value=np.nan)
    )
    geometry = geometry_of(ledger, asks[0])
    workload = Workload.usual(geometry, max_rows=1 + max(ask.drafts for ask in asks))
    found = estimate(asked, profile, geometry, workload)
    fits = sum(one is not None for one in slots)
    print(f"The ledger holds {fits} of the {len(slots)} configurations that ran.\n")
    measured = measured.assign(estimate_s=found["round_s"])
    print(markdown(table(measured)))
    found = losses(measured)
    print("\n" + markdown(found.drop(columns=["lost", "most"])))
    print(
        f"\nThe estimated ring loses {found['lost'].mean():.1%} against the best measured one over "
        f"{len(found)} places, at worst {found['lost'].max():.1%}; the worst ring would lose "
        f"{found['most'].mean():.1%}, at worst {found['most'].max():.1%}."
    )


def ask_of(row: dict[str, object]) -> Ask:
    """Return the session that a row of the sweep was."""
    drafts = int(row["spec"])
    return Ask(
        depth_cells=int(row["depth_cells"]),
        max_new=int(row["max_new"]),
        drafts=drafts,
        select=str(row["select"]),
        page_cells=int(row["page_cells"]),
        window=Window(cells=int(row["mtp_window_cells"]) if drafts else 0),
        budget_bytes=int(row["vram_budget_bytes"]),
        context_cells=int(row["context_cells"]),
    )


def table(measured: pd.DataFrame) -> pd.DataFrame:
    """Return error and rank correlation by depth and drafts."""
    rows = []
    groups = [("all", measured)]
    groups += [
        (f"{depth:,} cells, {drafts} drafts", group)
        for (depth, drafts), group in measured.groupby(["depth_cells", "spec"])
    ]
    for name, group in groups:
        error = group["estimate_s"] / group["round_s"] - 1
        varies = group["estimate_s"].nunique() > 1
        rank = stats.spearmanr(group["estimate_s"], group["round_s"]).statistic if varies else None
        rows.append(
            {
                "where": name,
                "configurations": len(group),
                "mean error": f"{error.mean():+.1%}",
                "mean absolute error": f"{error.abs().mean():.1%}",
                "rank correlation": "-" if rank is None else f"{rank:.2f}",
            }
        )
    return pd.DataFrame(rows)


def losses(measured: pd.DataFrame) -> pd.DataFrame:
    """Return what the estimated ring loses against the best measured one."""
    rows = []
    for key, group in measured.groupby([*SETTING, "depth_cells"], dropna=False, sort=True):
        place = dict(zip([*SETTING, "depth_cells"], key, strict=True))
        times = group.set_index("ring_cells")["round_s"]
        chosen = group.loc[group["estimate_s"].idxmin(), "ring_cells"]
        rows.append(
            {
                "budget": f"{int(place['vram_budget_bytes']) >> 20} MiB",
                "selection": place["select"],
                "depth": f"{place['depth_cells']:,}",
                "drafts": place["spec"],
                "estimated ring": f"{chosen:,}",
                "best ring": f"{times.idxmin():,}",
                "lost": times[chosen] / times.min() - 1,
                "most": times.max() / times.min() - 1,
                "loss": f"{times[chosen] / times.min() - 1:.1%}",
                "loss of the worst": f"{times.max() / times.min() - 1:.1%}",
            }
        )
    return pd.DataFrame(rows)


if __name__ == "__main__":
    main()
