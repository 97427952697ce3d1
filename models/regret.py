"""Judge policies by regret: what a session loses against the best ring, measured elsewhere.

The best of several noisy rings looks better than it is, so the best ring is chosen on one half
of a tier's passages and every policy is scored on the other half, over many random halvings. A
regret can then come out below zero: the ring that looked best was not, and that is a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from strata.config import Selection
from strata.models.decide import Rule, decide
from strata.models.frame import checked, pair_table, passage_means
from strata.models.latency import RoundTime
from strata.policy.request import PolicyName, RingRequest, minimum_ring_cells, need_cells
from strata.policy.rules import choose_ring

RULES: tuple[PolicyName, ...] = ("depth", "adapt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The measured rings of one (tier, mode): log ratios over the default by passage."""

    tier_cells: int
    mode: str
    table: pd.DataFrame
    """Rows are passages, columns rings; the default ring's column is zero."""
    context_cells: int
    need_cells: int
    page_cells: int
    minimum_cells: int
    default_cells: int
    slots: dict[int, float]


def regret(
    frame: pd.DataFrame, rule: Rule, default_ring_cells: int, *, halvings: int = 20, seed: int = 0
) -> pd.DataFrame:
    """Return the mean regret of each policy, in percent of speed, and its worst entry.

    Columns: policy, mean_pct, worst_pct, entries, not_measured (entries whose ring the study
    did not measure; never replaced by the nearest). Policies: ``learned`` (the decision rule on
    the first half), ``cost model`` (the shortest round that it predicts from the first half, with
    no regard for doubt), ``fixed N`` for every ring, ``depth``, ``adapt``, ``need``, ``fit``.
    """
    trials = checked(frame)
    benches = _benches(trials, default_ring_cells)
    cap = int(trials["ring_cells"].max())
    choices = {
        (b.tier_cells, b.mode): rule_choices(b, cap, sorted(trials["ring_cells"].unique()))
        for b in benches
    }
    scores: dict[tuple[str, int, str], list[float]] = {}
    rng = np.random.default_rng(seed)
    for _ in range(halvings if benches else 0):
        halves = {b.tier_cells: _halve(_passages(benches, b.tier_cells), rng) for b in benches}
        chosen_on = [passage for first, _ in halves.values() for passage in first]
        half = trials[trials["passage"].isin(chosen_on)]
        entries = decide(half, rule, default_ring_cells)
        learned = {(e.tier_cells, e.mode): e.ring_cells for e in entries}
        predicted = _predicted_best(half)
        for bench in benches:
            key = (bench.tier_cells, bench.mode)
            first, second = halves[bench.tier_cells]
            own = {
                "learned": learned.get(key, default_ring_cells),
                "cost model": predicted.get(key, default_ring_cells),
            }
            for policy, value in _score(bench, first, second, choices[key] | own).items():
                scores.setdefault((policy, *key), []).append(value)
    return _summary(scores, benches, choices)


def _benches(trials: pd.DataFrame, default_ring_cells: int) -> list[Bench]:
    means = passage_means(pair_table(trials))
    benches = []
    for (tier, mode), group in means.groupby(["tier_cells", "mode"], sort=True):
        table = group.pivot_table(index="passage", columns="ring_cells", values="log_ratio")
        table = table.dropna()
        if len(table) < 2:
            continue
        table[default_ring_cells] = 0.0
        mine = trials[(trials["tier_cells"] == tier) & (trials["mode"] == mode)]
        benches.append(bench_of(mine, table, default_ring_cells))
    return benches


def bench_of(runs: pd.DataFrame, table: pd.DataFrame, default_ring_cells: int) -> Bench:
    """Return the bench of one (tier, mode) from its runs, with `table` as what they measured."""
    first = runs.iloc[0]
    page = int(first["page_cells"])
    need = need_cells(
        prompt_cells=int(first["depth_cells"]), max_new=int(first["max_new"]), page_cells=page
    )
    selection = Selection.parse(str(first["select"]))
    return Bench(
        tier_cells=int(first["tier_cells"]),
        mode=str(first["mode"]),
        table=table,
        context_cells=int(first["context_cells"]),
        need_cells=need,
        page_cells=page,
        minimum_cells=minimum_ring_cells(selection, need_cells=need, page_cells=page),
        default_cells=default_ring_cells,
        slots=runs.groupby("ring_cells")["expert_slots"].max().dropna().to_dict(),
    )


def _predicted_best(half: pd.DataFrame) -> dict[tuple[int, str], int]:
    """Return the ring of each (tier, mode) whose round the cost model predicts to be shortest."""
    finished = half[half["kind"] == "ok"]
    if finished.empty:
        return {}
    asked = finished.drop_duplicates(["tier_cells", "mode", "ring_cells"])
    asked = asked.assign(_s=RoundTime.learn(finished).seconds(asked))
    best = asked.loc[asked.groupby(["tier_cells", "mode"])["_s"].idxmin()]
    rows = zip(best["tier_cells"], best["mode"], best["ring_cells"], strict=True)
    return {(int(tier), str(mode)): int(ring) for tier, mode, ring in rows}


def rule_choices(bench: Bench, cap: int, rings: Sequence[int]) -> dict[str, int]:
    """Return the ring of every policy that needs no measurement."""
    chosen = {f"fixed {ring}": int(ring) for ring in rings}
    for policy in RULES:
        request = RingRequest(
            policy=policy,
            need_cells=bench.need_cells,
            max_context_cells=bench.context_cells,
            page_cells=bench.page_cells,
            minimum_cells=bench.minimum_cells,
            default_cells=bench.default_cells,
            kv_resident=cap,
            mode="on" if bench.mode == "on" else "off",
        )
        chosen[policy] = choose_ring(request).ring_cells
    chosen["need"] = min(max(bench.need_cells, bench.minimum_cells), cap)
    chosen["fit"] = _fit_ring(bench)
    return chosen


def _fit_ring(bench: Bench) -> int:
    """Return the largest ring that keeps the most expert slots (all of them, if any ring does)."""
    rings = [int(ring) for ring in bench.table.columns]
    most = max((bench.slots.get(ring, np.inf) for ring in rings), default=np.inf)
    return max(ring for ring in rings if bench.slots.get(ring, np.inf) >= most)


def _score(
    bench: Bench, first: Sequence[str], second: Sequence[str], choices: dict[str, int]
) -> dict[str, float]:
    """Return each policy's regret on the second half against the best ring of the first."""
    table = bench.table
    chosen_on = table[table.index.isin(first)].mean()
    scored_on = table[table.index.isin(second)].mean()
    if chosen_on.isna().any() or scored_on.isna().any():
        return {}
    best = scored_on[chosen_on.idxmax()]
    found = {policy: measured_ring(bench, ring) for policy, ring in choices.items()}
    return {
        policy: float(best - scored_on[ring]) for policy, ring in found.items() if ring is not None
    }


def measured_ring(bench: Bench, ring_cells: int) -> int | None:
    """Return the measured ring with the same pool as `ring_cells`, None where there is none."""
    pool = min(ring_cells, bench.context_cells)
    for ring in bench.table.columns:
        if min(int(ring), bench.context_cells) == pool:
            return int(ring)
    return None


def _passages(benches: Sequence[Bench], tier_cells: int) -> list[str]:
    names = {str(p) for b in benches if b.tier_cells == tier_cells for p in b.table.index}
    return sorted(names)


def _halve(names: Sequence[str], rng: np.random.Generator) -> tuple[list[str], list[str]]:
    shuffled = [str(name) for name in rng.permutation(np.array(names, dtype=object))]
    middle = (len(shuffled) + 1) // 2
    return shuffled[:middle], shuffled[middle:]


def _summary(
    scores: dict[tuple[str, int, str], list[float]],
    benches: Sequence[Bench],
    choices: dict[tuple[int, str], dict[str, int]],
) -> pd.DataFrame:
    rows = []
    for policy in dict.fromkeys(
        ["learned", "cost model", *(p for c in choices.values() for p in c)]
    ):
        values = [float(np.mean(v)) for (name, *_), v in scores.items() if name == policy]
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


def lost_pct(log_regret: float) -> float:
    """Return the percentage of the best ring's speed that is lost."""
    return float(-100 * np.expm1(-log_regret))
