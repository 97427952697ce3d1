"""Say what the two campaign plans may find, from prices that an earlier sweep gave.

    python experiments/h200-campaign/design.py experiments/trade/results-2.jsonl

For each budget and context: which single ring is expected to lose least over the tiers and modes
of the plans, how much that is, and which ring is best where. The sweep's sessions have no pairs,
so this chooses what to measure and decides nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from strata.cli.model_ledger import Ask, Ledger
from strata.config import Window
from strata.errors import BudgetError
from strata.lm import bundled_model_path
from strata.models.evaluate import finished
from strata.models.latency import RoundTime
from strata.tuner.plan import Plan, load_plan

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "cost-model"))
from grid import read_grid  # noqa: E402

PLANS = ("h200-own.toml", "h200-shared.toml")
BUDGETS_MIB = (48, 56, 60, 64, 68, 72, 80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+")
    args = parser.parse_args()
    ledger = Ledger.open(bundled_model_path(), "bfloat16")
    time = RoundTime.learn(sweep(args.results))
    for name in PLANS:
        plan = load_plan(str(HERE.parent / "plans" / name))
        print(f"\n{plan.name} ({plan.session.vram_budget / 2**20:.0f} MiB in the plan)\n")
        print("| budget | best single ring | mean loss | worst | default's mean loss | best ring |")
        print("| --- | --- | --- | --- | --- | --- |")
        for budget in BUDGETS_MIB:
            asked = sessions(plan, ledger, budget)
            if not asked.empty:
                print(line(plan, asked, time, budget))


def sweep(results: list[Path]) -> pd.DataFrame:
    """Return the sessions of both contexts as one frame, each a pair of its own."""
    parts = [finished(read_grid(results, context=context)) for context in ("own", "shared")]
    every = pd.concat(parts, ignore_index=True)
    every["trial_id"] = every["pair_id"] = [str(number) for number in range(len(every))]
    return every


def sessions(plan: Plan, ledger: Ledger, budget_mib: int) -> pd.DataFrame:
    """Return every session of the plan that a budget holds, with the experts beside its ring."""
    rows = []
    for tier in plan.grid.tiers:
        for mode in plan.grid.modes:
            for ring in plan.grid.rings:
                ask = Ask(
                    depth_cells=tier,
                    max_new=plan.measure.max_new,
                    drafts=plan.session.drafts if mode == "on" else 0,
                    select=plan.session.select,
                    page_cells=plan.session.page,
                    window=Window(cells=int(plan.session.mtp_window)),
                    budget_bytes=budget_mib << 20,
                    context_cells=plan.context_cells(tier),
                )
                try:
                    slots = ledger.expert_slots(ask, ring)
                except BudgetError:
                    continue
                if slots is not None:
                    rows.append(row(ask, mode, ring, slots))
    return pd.DataFrame(rows)


def row(ask: Ask, mode: str, ring: int, slots: float) -> dict[str, object]:
    return {
        "mode": mode,
        "spec": ask.drafts,
        "depth_cells": ask.depth_cells,
        "tier_cells": ask.depth_cells,
        "max_new": ask.max_new,
        "context_cells": ask.whole_cells,
        "ring_cells": ring,
        "pool_cells": ask.pool_cells(ring),
        "page_cells": ask.page_cells,
        "mtp_window_cells": ask.window.cells,
        "select": ask.select,
        "expert_slots": slots,
    }


def line(plan: Plan, asked: pd.DataFrame, time: RoundTime, budget_mib: int) -> str:
    """Return a budget's row of the table: losses in percent of the best ring's round time."""
    seconds = asked.assign(s=time.seconds(asked)).pivot_table(
        index=["depth_cells", "mode"], columns="ring_cells", values="s"
    )
    loss = 100 * (seconds.div(seconds.min(axis=1), axis=0) - 1)
    everywhere = loss.loc[:, loss.notna().all()]
    mean = everywhere.mean()
    best = mean.idxmin()
    where = ", ".join(
        f"{depth // 1024}K {mode} {ring}" for (depth, mode), ring in seconds.idxmin(axis=1).items()
    )
    default = mean.get(plan.grid.default_ring, float("nan"))
    return (
        f"| {budget_mib} MiB | {best} | {mean[best]:.2f} % | {everywhere[best].max():.1f} % "
        f"| {default:.2f} % | {where} |"
    )


if __name__ == "__main__":
    main()
