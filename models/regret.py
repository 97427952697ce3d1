"""Judge policies by regret: what a session loses against the best ring, measured elsewhere.

The best of several noisy rings looks better than it is, so the best ring is chosen on one half
of the documents and every policy is scored on the other half, over many random halvings. A
regret can then come out below zero: the ring that looked best was not, and that is a result.

Where the study ran every ring on its fresh passages, those alone are halved and scored. The
search passages then choose, as they do in the study, and the first half confirms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from strata.models.bench import (
    Bench,
    Place,
    benches_of,
    document_of,
    halves,
    lost_pct,
    rows_of,
    rule_choices,
    scored_split,
)
from strata.models.decide import Rule, decide_pairs
from strata.models.frame import checked, pair_table
from strata.models.latency import RoundTime

LEARNED, PREDICTED, TABLE = "learned", "cost model", "the study's table"


def regret(
    frame: pd.DataFrame, rule: Rule, default_ring_cells: int, *, halvings: int = 20, seed: int = 0
) -> pd.DataFrame:
    """Return the mean regret of each policy, in percent of speed, and its worst entry.

    Columns: policy, mean_pct, worst_pct, entries, not_measured (entries whose ring the study
    did not measure; never replaced by the nearest). Policies: ``learned`` (the decision rule
    without the half that scores), ``cost model`` (the shortest round that it predicts from the
    same, with no regard for doubt), ``fixed N`` for every ring, ``depth``, ``adapt``, ``need``,
    ``fit``; on fresh passages also ``the study's table``, which those passages confirmed.
    """
    trials, pairs = checked(frame), pair_table(frame)
    split = scored_split(pairs)
    benches = benches_of(trials, pairs, default_ring_cells, split)
    rings = sorted(int(ring) for ring in trials["ring_cells"].unique())
    choices = {bench.place: rule_choices(bench, rings) for bench in benches}
    if split == "fresh":
        final = table_rings(pairs, rule, default_ring_cells)
        choices = {place: {TABLE: final[place]} | found for place, found in choices.items()}
    scores: dict[tuple[str, Place], list[float]] = {}
    for first, second in halves(benches, halvings, seed):
        known = known_rows(pairs, split, first)
        learned = table_rings(pairs[known], rule, default_ring_cells)
        predicted = predicted_rings(trials[known_rows(trials, split, first)])
        for bench in benches:
            own = {
                LEARNED: learned.get(bench.place, default_ring_cells),
                PREDICTED: predicted.get(bench.place, default_ring_cells),
            }
            for policy, value in _score(bench, first, second, own | choices[bench.place]).items():
                scores.setdefault((policy, bench.place), []).append(value)
    return _summary(scores, benches, choices)


def known_rows(table: pd.DataFrame, split: str, documents: frozenset[str]) -> pd.Series:
    """Return which rows a policy may learn from: those of some documents, and the search's."""
    mine = table["passage"].map(document_of).isin(documents)
    return mine | (table["split"] == "search") if split == "fresh" else mine


def table_rings(pairs: pd.DataFrame, rule: Rule, default_ring_cells: int) -> dict[Place, int]:
    """Return the ring of each (tier, mode) in the table that some pairs would give."""
    found = decide_pairs(pairs, rule, default_ring_cells)
    return {(one.tier_cells, one.mode): one.ring_cells for one in found.entries}


def predicted_rings(trials: pd.DataFrame) -> dict[Place, int]:
    """Return the ring of each (tier, mode) whose round the cost model predicts to be shortest."""
    finished = trials[trials["kind"] == "ok"]
    if finished.empty:
        return {}
    asked = finished.drop_duplicates(["tier_cells", "mode", "ring_cells"])
    asked = asked.assign(_s=RoundTime.learn(finished).seconds(asked))
    best = asked.loc[asked.groupby(["tier_cells", "mode"])["_s"].idxmin()]
    rows = zip(best["tier_cells"], best["mode"], best["ring_cells"], strict=True)
    return {(int(tier), str(mode)): int(ring) for tier, mode, ring in rows}


def _score(
    bench: Bench, first: frozenset[str], second: frozenset[str], choices: dict[str, int]
) -> dict[str, float]:
    """Return each policy's regret on the second half against the best ring of the first."""
    chosen_on = rows_of(bench.table, first).mean()
    scored_on = rows_of(bench.table, second).mean()
    if chosen_on.isna().any() or scored_on.isna().any():
        return {}
    best = scored_on[chosen_on.idxmax()]
    found = {policy: bench.measured(ring) for policy, ring in choices.items()}
    return {
        policy: float(best - scored_on[ring]) for policy, ring in found.items() if ring is not None
    }


def _summary(
    scores: dict[tuple[str, Place], list[float]],
    benches: Sequence[Bench],
    choices: dict[Place, dict[str, int]],
) -> pd.DataFrame:
    rows = []
    for policy in dict.fromkeys([LEARNED, PREDICTED, *(p for c in choices.values() for p in c)]):
        values = [float(np.mean(v)) for (name, _), v in scores.items() if name == policy]
        rows.append(
            {
                "policy": policy,
                "mean_pct": lost_pct(float(np.mean(values))) if values else np.nan,
                "worst_pct": lost_pct(max(values, default=np.nan)),
                "entries": len(values),
                "not_measured": len(benches) - len(values),
            }
        )
    return pd.DataFrame(
        rows, columns=["policy", "mean_pct", "worst_pct", "entries", "not_measured"]
    )
