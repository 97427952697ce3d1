"""What was measured at each (tier, mode), and which ring every policy takes there.

Passages are held-out documents, and a document's passage of 8K is the beginning of its passage of
32K. So the document, not the passage, is what is drawn anew: where evidence is divided, a
document's passages of all tiers fall on the same side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from strata.config import Selection
from strata.models.frame import passage_means
from strata.policy.request import PolicyName, RingRequest, minimum_ring_cells, need_cells
from strata.policy.rules import choose_ring

RULES: tuple[PolicyName, ...] = ("depth", "adapt")
MIN_PASSAGES = 2
Place = tuple[int, str]
"""A (tier, mode)."""


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
    refused_cells: int | None = None
    """The smallest ring that the memory did not hold."""

    @property
    def place(self) -> Place:
        """Return (tier, mode)."""
        return self.tier_cells, self.mode

    @property
    def rings(self) -> list[int]:
        """Return the measured rings, rising."""
        return sorted(int(ring) for ring in self.table.columns)

    @property
    def held_cells(self) -> int | None:
        """Return the largest measured ring that the memory holds, None where it held every ring.

        The engine's ledger caps a ring at what fits. Where that is was not measured, so the
        largest measured ring below what did not fit stands for it.
        """
        if self.refused_cells is None:
            return None
        return max((ring for ring in self.rings if ring < self.refused_cells), default=None)

    def measured(self, ring_cells: int) -> int | None:
        """Return the measured ring with the same pool, None where there is none."""
        pool = min(ring_cells, self.context_cells)
        for ring in self.rings:
            if min(ring, self.context_cells) == pool:
                return ring
        return None


def document_of(passage: str) -> str:
    """Return the document that a passage ``CELLS:SEED`` is the beginning of."""
    return passage.rpartition(":")[2]


def named_by_text(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with one name a text, the first that stands for it.

    Seeds wrap around the documents, so two names may begin one; where the frame knows its texts
    (`text`, ``CELLS:IDENTITY``), `document_of` then tells documents apart by what they hold.
    """
    if "text" not in frame or "passage" not in frame:
        return frame
    known = frame.loc[frame["text"].notna(), ["passage", "text"]].drop_duplicates()
    seeds: dict[str, str] = {}
    names: dict[str, str] = {}
    for passage, text in sorted(known.itertuples(index=False, name=None)):
        seed = seeds.setdefault(document_of(text), document_of(passage))
        names[passage] = f"{passage.rpartition(':')[0]}:{seed}" if ":" in passage else seed
    return frame.assign(passage=frame["passage"].map(lambda name: names.get(name, name)))


def scored_split(pairs: pd.DataFrame) -> str:
    """Return "fresh" where the fresh passages ran every ring that the search ran, else "all".

    Only then can policies be judged by passages on which nothing was chosen.
    """
    ran = pairs[(pairs["kind"] == "ok") & (pairs["ring_cells"] != pairs["default_ring_cells"])]
    keys = ["tier_cells", "mode", "ring_cells"]
    on = {
        split: set(group[keys].itertuples(index=False, name=None))
        for split, group in ran.groupby("split")
    }
    whole = "fresh" in on and "search" in on and on["search"] <= on["fresh"]
    return "fresh" if whole else "all"


def benches_of(
    trials: pd.DataFrame, pairs: pd.DataFrame, default_ring_cells: int, split: str = "all"
) -> list[Bench]:
    """Return the bench of each (tier, mode) with two whole passages of a split or more.

    A passage counts where every ring that ran at its (tier, mode) ran on it.
    """
    means = passage_means(pairs)
    if split != "all":
        means = means[means["split"] == split]
    benches = []
    for (tier, mode), group in means.groupby(["tier_cells", "mode"], sort=True):
        table = group.pivot_table(index="passage", columns="ring_cells", values="log_ratio")
        table = table.dropna()
        if len(table) < MIN_PASSAGES:
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
    # A pair that did not fit failed whole; it is the arm's ring that was too much, unless it is
    # known that the default's was.
    too_much = (runs["kind"] == "out of memory") & (runs["arm"] == "arm")
    if "failed_arm" in runs:
        too_much &= runs["failed_arm"] != "default"
    refused = runs.loc[too_much, "ring_cells"]
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
        refused_cells=None if refused.empty else int(refused.min()),
    )


def rule_choices(bench: Bench, rings: Sequence[int]) -> dict[str, int]:
    """Return the ring of every policy that needs no measurement, as a session would get it.

    `rings` are all that the study swept; the largest is the cap of every rule. What the memory
    does not hold at this (tier, mode) is lowered to what it holds, as the engine's ledger lowers
    a default ring and an unset cap.
    """
    cap = max(rings) if bench.held_cells is None else min(max(rings), bench.held_cells)
    chosen = {f"fixed {ring}": min(int(ring), cap) for ring in rings}
    for policy in RULES:
        request = RingRequest(
            policy=policy,
            need_cells=bench.need_cells,
            max_context_cells=bench.context_cells,
            page_cells=bench.page_cells,
            minimum_cells=bench.minimum_cells,
            default_cells=min(bench.default_cells, cap),
            kv_resident=None,
            fits_few_experts_cells=cap,
            mode="on" if bench.mode == "on" else "off",
        )
        chosen[policy] = choose_ring(request).ring_cells
    chosen["need"] = min(max(bench.need_cells, bench.minimum_cells), cap)
    chosen["fit"] = _fit_ring(bench)
    return chosen


def _fit_ring(bench: Bench) -> int:
    """Return the largest ring that keeps the most expert slots (all of them, if any ring does)."""
    most = max((bench.slots.get(ring, np.inf) for ring in bench.rings), default=np.inf)
    return max(ring for ring in bench.rings if bench.slots.get(ring, np.inf) >= most)


def halves(
    benches: Sequence[Bench], halvings: int, seed: int
) -> Iterator[tuple[frozenset[str], frozenset[str]]]:
    """Yield random halves of the documents, the larger one first."""
    names = sorted({document_of(str(one)) for bench in benches for one in bench.table.index})
    rng = np.random.default_rng(seed)
    for _ in range(halvings if benches else 0):
        shuffled = [str(name) for name in rng.permutation(np.array(names, dtype=object))]
        middle = (len(shuffled) + 1) // 2
        yield frozenset(shuffled[:middle]), frozenset(shuffled[middle:])


def rows_of(table: pd.DataFrame, documents: frozenset[str]) -> pd.DataFrame:
    """Return the rows of a bench's table whose passages are of some documents."""
    return table[[document_of(str(name)) in documents for name in table.index]]


def lost_pct(log_regret: float) -> float:
    """Return the percentage of the best ring's speed that is lost."""
    return float(-100 * np.expm1(-log_regret))
