"""How much of a gain is the luck of the default ring beside it?

    cd experiments/h200-campaign; python luck.py own-2/trials

The default ring runs in every pair, so its speed on a passage is known from all of them. Printed
is where, beside which ring, it was off its own median by more than half a percent, and what regret
and rivalry become when every pair is held against that median in place of its own default runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from second import gain_of, read

from strata.models.decide import Rule
from strata.models.regret import LEARNED, regret
from strata.models.rivals import compare_rivals
from strata.units import format_cells

PASSAGE = ["tier_cells", "mode", "passage"]
SHOWN = 0.005


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trials", type=Path)
    trials, rule, default = read(parser.parse_args().trials)
    luck = luck_of(trials)
    rings = trials[trials["arm"] == "arm"].groupby("pair_id")["ring_cells"].first()
    by_arm = luck.groupby([luck["tier_cells"], luck["mode"], luck.index.map(rings)])["luck"].mean()
    for (tier, mode, ring), mean in by_arm[by_arm.abs() > SHOWN].items():
        print(f"{format_cells(int(tier))} {mode}: beside {int(ring):,} the default ran {mean:+.1%}")
    print("\n| held against | regret, mean | worst | best fixed | learned over it | over default |")
    print("| --- | --- | --- | --- | --- | --- |")
    print(f"| its own default runs | {judgement(trials, rule, default)} |")
    runs = (trials["kind"] == "ok") & (trials["arm"] == "default")
    held = trials["rounds_per_s"].astype(float)
    held[runs] /= np.exp(trials.loc[runs, "pair_id"].map(luck["luck"]))
    median = judgement(trials.assign(rounds_per_s=held), rule, default)
    print(f"| the default's median | {median} |")


def luck_of(trials: pd.DataFrame) -> pd.DataFrame:
    """Return by pair `luck`: the log speed of its default runs over the passage's median."""
    runs = trials[(trials["kind"] == "ok") & (trials["arm"] == "default")]
    logs = runs.assign(log_speed=np.log(runs["rounds_per_s"].astype(float)))
    pairs = logs.groupby([*PASSAGE, "pair_id"])["log_speed"].mean().reset_index("pair_id")
    median = pairs.groupby(PASSAGE)["log_speed"].transform("median")
    return pairs.assign(luck=pairs["log_speed"] - median).reset_index().set_index("pair_id")


def judgement(trials: pd.DataFrame, rule: Rule, default_ring_cells: int) -> str:
    """Return the learned table's regret and what it gains on the best fixed ring, as cells."""
    lost = regret(trials, rule, default_ring_cells).set_index("policy").loc[LEARNED]
    rivals = compare_rivals(trials, rule, default_ring_cells).rivals.iloc[:2]
    over = [str(gain_of(*row)) for row in rivals[["mean", "lower", "upper"]].to_numpy(dtype=float)]
    best = f"{rivals['ring_cells'].iloc[0]:,.0f}"
    return " | ".join([f"{lost['mean_pct']:.2f} %", f"{lost['worst_pct']:.2f} %", best, *over])


if __name__ == "__main__":
    main()
