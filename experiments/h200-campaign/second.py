"""Hold a second campaign against the first.

    cd experiments/h200-campaign; python second.py own/trials own-2/trials

Do gains *repeat*? The first's log ratio less the second's, of pairs that ran in both. What do
documents say that *no study had seen*? The second's table is decided on its search passages and on
the fresh documents that the first campaign knew, and is scored on the others alone; the best ring
is chosen on the known ones, too. Margin and default ring are the second plan's.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from strata.models.bench import Bench, Place, benches_of, document_of, lost_pct, rows_of
from strata.models.decide import Entry, Rule, decide_pairs
from strata.models.frame import checked, pair_table
from strata.models.inference import mean_bounds
from strata.models.regret import known_rows, predicted_rings
from strata.policy.decision import Gain
from strata.tuner.conclude import rule_of
from strata.tuner.evidence import evidence_of
from strata.tuner.store import MemoryStore, import_study
from strata.units import format_cells

PLACE = ["tier_cells", "mode", "ring_cells", "passage"]
ALPHA = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    args = parser.parse_args()
    before, _, _ = read(args.first)
    trials, rule, default = read(args.second)
    pairs, old = pair_table(trials), pair_table(before)
    print(repeat(old, pairs))
    known = frozenset(old["passage"].map(document_of))
    fresh = frozenset(pairs.loc[pairs["split"] == "fresh", "passage"].map(document_of))
    chosen = known_rows(pairs, "fresh", known & fresh)
    entries = decide_pairs(pairs[chosen], rule, default).entries
    runs = checked(trials)
    benches = benches_of(runs, pairs, default, "fresh")
    predicted = predicted_rings(runs[known_rows(runs, "fresh", known)])
    print(unseen(benches, entries, predicted, known & fresh, fresh - known))
    others = decide_pairs(pairs[known_rows(pairs, "fresh", fresh - known)], rule, default)
    print(alone(others.entries))


def read(folder: Path) -> tuple[pd.DataFrame, Rule, int]:
    """Return the trials of a study, its decision rule and its default ring."""
    store = MemoryStore()
    study, _, _ = import_study(store, folder)
    return evidence_of(store, study), rule_of(study), study.default_ring_cells


def gain_of(mean: float, lower: float, upper: float) -> Gain:
    """Return a gain with its interval from log ratios."""
    return Gain(
        effect_ratio=np.expm1(mean), lower_ratio=np.expm1(lower), upper_ratio=np.expm1(upper)
    )


def repeat(old: pd.DataFrame, new: pd.DataFrame) -> str:
    """Return how far the gains of pairs that ran in both campaigns lie apart."""
    both = [one[one["kind"] == "ok"].set_index(PLACE)["log_ratio"] for one in (old, new)]
    gap = pd.concat(both, axis=1, keys=["old", "new"]).dropna()
    gap = (gap["old"] - gap["new"]).reset_index(name="gap")
    sample = gap.groupby(gap["passage"].map(document_of))["gap"].mean().to_numpy(dtype=float)
    low, high = mean_bounds(sample, ALPHA / 2)
    by_arm = gap.groupby(PLACE[:3])["gap"].mean()
    tier, mode, ring = by_arm.abs().idxmax()
    return (
        f"{len(gap)} pairs ran in both: the first's gain over the second's is "
        f"{np.expm1(sample.mean()):+.2%} [{np.expm1(low):+.2%}, {np.expm1(high):+.2%}] on average, "
        f"a pair's sd {gap['gap'].std(ddof=1):.1%}; of {len(by_arm)} arms the farthest apart is "
        f"{format_cells(tier)} {mode} {ring:,}: {by_arm.loc[(tier, mode, ring)]:+.1%}\n"
    )


def unseen(
    benches: list[Bench],
    entries: list[Entry],
    predicted: dict[Place, int],
    known: frozenset[str],
    others: frozenset[str],
) -> str:
    """Return the regret and gains on `others` of rings that were chosen on the known documents."""
    table = {(one.tier_cells, one.mode): one.ring_cells for one in entries}
    known_means = {one.place: rows_of(one.table, known).mean() for one in benches}
    best = {place: int(means.idxmax()) for place, means in known_means.items()}
    everywhere = set.intersection(*(set(one.rings) for one in benches))
    scores = [rows_of(one.table, others).mean() for one in benches]
    fixed = max(everywhere, key=lambda ring: np.mean([score[ring] for score in scores]))
    policies = {
        "learned": table,
        "cost model": predicted,
        "best of the known documents": best,
        f"best fixed in hindsight, {fixed:,}": dict.fromkeys(best, fixed),
        "default ring": {one.place: one.default_cells for one in benches},
    }
    lines = [
        f"decided on {len(known)} known documents, scored on {len(others)} that no study had seen",
        "| policy | regret, mean | worst entry | learned over it, 95 % |",
        "| --- | --- | --- | --- |",
    ]
    for name, rings in policies.items():
        lost, over = [], []
        for one in benches:
            scored = rows_of(one.table, others)
            ring = one.measured(rings[one.place])
            lost.append(float(scored[best[one.place]].mean() - scored[ring].mean()))
            gain = scored[one.measured(table[one.place])] - scored[ring]
            over.append(gain.groupby(gain.index.map(document_of)).mean())
        sample = pd.concat(over, axis=1).mean(axis=1).to_numpy(dtype=float)
        low, high = mean_bounds(sample, ALPHA / 2) if sample.any() else (0.0, 0.0)
        lines.append(
            f"| {name} | {lost_pct(float(np.mean(lost))):.2f} % | {lost_pct(max(lost)):.2f} % | "
            f"{gain_of(sample.mean(), low, high)} |"
        )
    return "\n".join(lines) + "\n"


def alone(entries: list[Entry]) -> str:
    """Return what the plan's rule makes of the unseen documents alone."""
    lines = [
        "decided on the unseen documents alone",
        "| tier | drafter | ring | verdict | gain |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in entries:
        place = f"{format_cells(one.tier_cells)} | {one.mode} | {one.ring_cells:,} | {one.verdict}"
        gain = "-"
        if one.best is not None:
            found = gain_of(one.best.mean, one.best.lower, one.best.upper)
            gain = f"{one.best.ring_cells:,}: {found}"
        lines.append(f"| {place} | {gain} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
