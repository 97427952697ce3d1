"""Compare the learned table with every other way to choose a ring, on passages neither was shown.

Each document is left out in turn: the table is decided without it, and the rings of that table are
scored on it. A document's log ratios over a rival are averaged over the (tier, mode)s, because its
passages of all tiers are one text; the documents are then the sample, and the interval is
Student's t. The best `fixed` is the best in hindsight, on the very passages that score it, which
favours it. A tie is an interval that holds zero.

Each interval stands for itself: that the table is above *all* rivals needs every one of the
comparisons, so no correction (Berger, Technometrics, 1982). The bounds by (tier, mode) are
Bonferroni's over the entries that any of the tables moves, so that they hold together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from strata.models.bench import (
    Bench,
    Place,
    benches_of,
    document_of,
    named_by_text,
    rows_of,
    rule_choices,
    scored_split,
)
from strata.models.decide import Rule
from strata.models.frame import checked, pair_table
from strata.models.inference import mean_bounds
from strata.models.regret import LEARNED, PREDICTED, known_rows, predicted_rings, table_rings

DEFAULT, BEST_FIXED = "default ring", "best fixed in hindsight"
HARMLESS_RATIO = 0.01
"""What an entry may lose on the default ring and still count as no worse."""
ALPHA = 0.05
RIVALS = [
    "rival", "ring_cells", "mean", "lower", "upper", "documents", "entries", "not_measured",
    "verdict",
]  # fmt: skip
ENTRIES = [
    "tier_cells", "mode", "ring_cells", "best_ring_cells", "moved", "documents", "mean", "lower",
    "no_worse",
]  # fmt: skip
Gains = dict[tuple[str, str], dict[Place, float]]
"""(policy, document) -> (tier, mode) -> log ratio over the default ring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivalry:
    """How the learned table fares; log ratios throughout."""

    split: str
    """Whose passages scored: "fresh", or "all" where not every ring ran on fresh ones."""
    rivals: pd.DataFrame
    """RIVALS: `ring_cells` of a fixed one, `verdict` better, worse or tie."""
    entries: pd.DataFrame
    """ENTRIES: `ring_cells` is the study's table's, `best_ring_cells` the best in hindsight,
    `moved` counts the tables without one document that move the ring; `mean` and `lower` are over
    the default ring."""
    tests: int
    """The entries that the bounds of `entries` are corrected for."""


def compare_rivals(frame: pd.DataFrame, rule: Rule, default_ring_cells: int) -> Rivalry:
    """Return what the table gains on each rival, and on the default ring at each (tier, mode).

    Raises UsageError when the frame is not usable.
    """
    frame = named_by_text(frame)
    trials, pairs = checked(frame), pair_table(frame)
    split = scored_split(pairs)
    benches = benches_of(trials, pairs, default_ring_cells, split)
    rings = sorted(int(ring) for ring in trials["ring_cells"].unique())
    documents = sorted({document_of(str(p)) for bench in benches for p in bench.table.index})
    if not benches:
        empty = pd.DataFrame(columns=RIVALS), pd.DataFrame(columns=ENTRIES)
        return Rivalry(split=split, rivals=empty[0], entries=empty[1], tests=0)
    choices = {bench.place: rule_choices(bench, rings) for bench in benches}
    gains: Gains = {}
    moved = dict.fromkeys(choices, 0)
    for one in documents:
        others = frozenset(documents) - {one}
        learned = table_rings(pairs[known_rows(pairs, split, others)], rule, default_ring_cells)
        predicted = predicted_rings(trials[known_rows(trials, split, others)])
        for bench in benches:
            place = bench.place
            ring = learned.get(place, default_ring_cells)
            moved[place] += ring != default_ring_cells
            own = {
                LEARNED: ring,
                PREDICTED: predicted.get(place, default_ring_cells),
                DEFAULT: default_ring_cells,
            }
            for policy, chosen in (choices[place] | own).items():
                if (gain := _gain(bench, one, chosen)) is not None:
                    gains.setdefault((policy, one), {})[place] = gain
    final = table_rings(pairs, rule, default_ring_cells)
    entries = _entries(benches, documents, gains, final, moved)
    return Rivalry(
        split=split,
        rivals=_rivals(benches, documents, gains, rings),
        entries=entries,
        tests=sum(count > 0 for count in moved.values()),
    )


def _gain(bench: Bench, document: str, ring_cells: int) -> float | None:
    """Return the log ratio of a ring on a document's passages, None where it was not measured."""
    ring, rows = bench.measured(ring_cells), rows_of(bench.table, frozenset({document}))
    return None if ring is None or rows.empty else float(rows[ring].mean())


def _rivals(
    benches: Sequence[Bench], documents: Sequence[str], gains: Gains, rings: Sequence[int]
) -> pd.DataFrame:
    fixed = {ring: _mean_gain(f"fixed {ring}", benches, documents, gains) for ring in rings}
    best = max(fixed, key=lambda ring: fixed[ring])
    names = {BEST_FIXED: f"fixed {best}", DEFAULT: DEFAULT}
    names |= {name: name for name in ("depth", "adapt", "need", "fit", PREDICTED)}
    rows = []
    for words, policy in names.items():
        sample, places = _differences(policy, documents, gains)
        if not len(sample):
            continue
        lower, upper = mean_bounds(sample, ALPHA / 2)
        rows.append(
            {
                "rival": words,
                "ring_cells": best if words == BEST_FIXED else None,
                "mean": float(sample.mean()),
                "lower": lower,
                "upper": upper,
                "documents": len(sample),
                "entries": len(places),
                "not_measured": len(benches) - len(places),
                "verdict": "better" if lower > 0 else "worse" if upper < 0 else "tie",
            }
        )
    return pd.DataFrame(rows, columns=RIVALS)


def _mean_gain(
    policy: str, benches: Sequence[Bench], documents: Sequence[str], gains: Gains
) -> float:
    """Return a policy's mean log ratio, minus infinity where it lacks a (tier, mode)."""
    by_place = [
        [gains[policy, one][bench.place] for one in documents
         if bench.place in gains.get((policy, one), {})]
        for bench in benches
    ]  # fmt: skip
    return float(np.mean([np.mean(one) if one else -np.inf for one in by_place]))


def _differences(
    policy: str, documents: Sequence[str], gains: Gains
) -> tuple[np.ndarray, set[Place]]:
    """Return the table's mean log ratio over a policy by document, and where both were measured."""
    sample, places = list[float](), set[Place]()
    for one in documents:
        mine, theirs = gains.get((LEARNED, one), {}), gains.get((policy, one), {})
        both = mine.keys() & theirs.keys()
        if both:
            sample.append(float(np.mean([mine[place] - theirs[place] for place in both])))
            places |= both
    return np.array(sample), places


def _entries(
    benches: Sequence[Bench],
    documents: Sequence[str],
    gains: Gains,
    final: dict[Place, int],
    moved: dict[Place, int],
) -> pd.DataFrame:
    tests = max(1, sum(count > 0 for count in moved.values()))
    floor = float(np.log1p(-HARMLESS_RATIO))
    rows = []
    for bench in benches:
        place = bench.place
        sample = np.array(
            [gains[LEARNED, one][place] for one in documents
             if place in gains.get((LEARNED, one), {})]
        )  # fmt: skip
        # Where no table moves the ring it is the default ring, which is no worse than itself.
        lower = mean_bounds(sample, ALPHA / tests)[0] if moved[place] else 0.0
        rows.append(
            {
                "tier_cells": bench.tier_cells,
                "mode": bench.mode,
                "ring_cells": final[place],
                "best_ring_cells": int(bench.table.mean().idxmax()),
                "moved": moved[place],
                "documents": len(sample),
                "mean": float(sample.mean()),
                "lower": lower,
                "no_worse": bool(lower > floor),
            }
        )
    return pd.DataFrame(rows, columns=ENTRIES)
