"""Measure a few entries of a policy table again and say whether each still holds here.

An entry that moves a ring claims more than the table's margin over the default ring. Its ring is
run beside the default one as a sweep does (`strata.tuner.measure`), on passages meant to confirm,
and the mean log ratio over passages is bounded by Student's t at the table's confidence, on either
side: *holds* where the lower bound clears the margin, *does not hold* where the upper bound misses
it or the ring cannot be run, *undecided* else. What the default ring failed of by itself says
nothing of the entry's.

A table's own passages made it choose its rings, so that documents it was not chosen on go first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from strata.config import AUTO_WINDOW, Window
from strata.errors import TableError
from strata.models.inference import mean_bounds
from strata.passages import documents, parse_passage
from strata.policy.fingerprint import Fingerprint
from strata.policy.request import need_cells
from strata.policy.table import Entry, PolicyTable
from strata.tuner.arms import PairSpec
from strata.tuner.environment import EngineFacts
from strata.tuner.passages import documents_of
from strata.tuner.plan import WARM_UP_TOKENS
from strata.tuner.record import TrialRecord
from strata.tuner.sweep import pair_gain

Outcome = Literal["holds", "does not hold", "undecided"]


class PairRunner(Protocol):
    """Runs one pair and returns its records, whatever happened."""

    def run_pair(
        self, spec: PairSpec, facts: EngineFacts, *, timeout_s: float
    ) -> list[TrialRecord]:
        """Run one pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What an entry measured here; mean and bounds are log ratios over the default ring."""

    entry: Entry
    outcome: Outcome
    passages: int
    fresh: int = 0
    """How many of `passages` the table is known not to have been chosen on."""
    mean: float | None = None
    lower: float = -math.inf
    upper: float = math.inf
    reason: str = ""
    """What went wrong, where something did."""


def confirming_passages(table: PolicyTable, count: int, tier_cells: int) -> list[str]:
    """Return `count` of the passages that ship, at a prompt length, those new to a table first.

    Then, and where the table does not name its documents, come those meant to confirm.
    """
    used = table.documents or frozenset()
    seeds = sorted(
        range(len(documents())),
        key=lambda seed: (documents()[seed].sha256 in used, documents()[seed].split != "fresh"),
    )
    return [f"{tier_cells}:{seed}" for seed in seeds[:count]]


def is_fresh(table: PolicyTable, passage: str) -> bool:
    """Return whether a table is known not to have been chosen on a passage's document."""
    used = table.documents
    return used is not None and not documents_of([parse_passage(passage)[1]]) & used


def freshness(table: PolicyTable, passages: Sequence[str]) -> str:
    """Return how many of the passages to be measured are fresh, and why the others are not."""
    of = f"of {len(passages)} passages"
    if table.documents is None:
        return f"none {of} is known to be fresh: the table does not name the documents it rests on"
    fresh = sum(is_fresh(table, name) for name in passages)
    if fresh == len(passages):
        return f"all {fresh} passages are fresh: the table was not chosen on their documents"
    return (
        f"{fresh or 'none'} {of} {'are' if fresh > 1 else 'is'} fresh: the table was chosen on "
        f"the others, and no further document that ships is left"
    )


def choose_entries(table: PolicyTable, *, tiers: Sequence[int] = (), count: int) -> list[Entry]:
    """Return at most `count` entries that move a ring, the least sure of them first.

    Raises TableError for a tier that the table does not have.
    """
    known = {tier.name_cells for tier in table.tiers}
    if unknown := sorted(set(tiers) - known):
        raise TableError(
            f"it has no tier {unknown[0]}; it has {', '.join(map(str, sorted(known)))}"
        )
    moving = [
        entry
        for entry in table.entries
        if entry.verdict == "better" and (not tiers or entry.tier_cells in tiers)
    ]
    return sorted(moving, key=lambda entry: entry.lower_ratio or 0.0)[:count]


def refuse_elsewhere(table: PolicyTable, facts: EngineFacts) -> None:
    """Raise TableError where the table was not measured here, and does not declare this either."""
    measured = table.fingerprint
    here = Fingerprint(
        device=facts.device,
        model_hash=facts.model_hash,
        kv_dtype=facts.kv_dtype,
        page_cells=measured.page_cells,
        select=measured.select,
        spec=measured.spec,
        mtp_window=measured.mtp_window,
        victims=measured.victims,
        vram_budget_bytes=measured.vram_budget_bytes,
        context=measured.context,
    )
    if differing := table.obstacles(here, "on"):
        raise TableError(
            f"it is not obeyed here, so there is nothing to check: {'; '.join(map(str, differing))}"
        )


def check_entries(
    table: PolicyTable,
    entries: Sequence[Entry],
    runner: PairRunner,
    facts: EngineFacts,
    *,
    passages: int,
    max_new: int,
    timeout_s: float,
    on_pair: Callable[[PairSpec, list[TrialRecord]], None] = lambda pair, records: None,
) -> Iterator[Checked]:
    """Measure each entry on so many passages, one pair each, and yield what became of it."""
    for entry in entries:
        runs: list[list[TrialRecord]] = []
        for name in confirming_passages(table, passages, entry.tier_cells):
            pair = pair_of(table, entry, name, max_new=max_new)
            runs.append(runner.run_pair(pair, facts, timeout_s=timeout_s))
            on_pair(pair, runs[-1])
        yield judge(table, entry, runs)


def pair_of(table: PolicyTable, entry: Entry, passage: str, *, max_new: int) -> PairSpec:
    """Return the pair that holds an entry's ring against the default one, under its conditions."""
    own, page = table.fingerprint, table.fingerprint.page_cells
    if own.spec == "auto":
        raise TableError("its number of drafts is auto, so its rounds cannot be paired")
    drafting = entry.mode == "on"
    need = need_cells(prompt_cells=entry.tier_cells, max_new=max_new, page_cells=page)
    context = need if own.context == "own" else -(-own.context // page) * page
    return PairSpec(
        study="check",
        split="fresh",
        tier_cells=entry.tier_cells,
        depth_cells=entry.tier_cells,
        passage=passage,
        mode=entry.mode,
        spec=own.spec if drafting else 0,
        mtp_window_cells=_window_cells(own) if drafting else None,
        default_ring_cells=table.default_ring_cells,
        arm_ring_cells=entry.ring_cells,
        select=own.select,
        page_cells=page,
        victims=own.victims,
        vram_budget_bytes=own.vram_budget_bytes,
        context_cells=context,
        max_new=max_new,
        warm_up=WARM_UP_TOKENS,
        min_decode_s=None,
    )


def _window_cells(measured: Fingerprint) -> int | None:
    """Return W as a pair names it, None for the rule of a session that is told none."""
    window = Window.of_word(measured.mtp_window)
    if window == AUTO_WINDOW:
        return None
    if window.within_ring:
        raise TableError(
            f"its drafter read {measured.mtp_window} (auto is the ring), which no pair measures "
            "any more; measure its study again"
        )
    return window.cells


def judge(table: PolicyTable, entry: Entry, runs: Sequence[Sequence[TrialRecord]]) -> Checked:
    """Return what the pairs of an entry say of it."""
    gains = {pair[0].passage: gain for pair in runs if (gain := pair_gain(pair)) is not None}
    failed = [run for pair in runs for run in pair if run.kind != "ok"]
    sample = np.array(list(gains.values()))
    mean = float(sample.mean()) if gains else None
    lower, upper = mean_bounds(sample, 1 - entry.confidence)
    outcome: Outcome = "undecided"
    reason = f"{failed[0].kind}: {failed[0].message}" if failed else ""
    claim = math.log1p(table.margin_ratio)
    if any(_is_charged(run) for run in failed) or upper < claim:
        outcome = "does not hold"
    elif lower > claim and not failed:
        outcome = "holds"
    return Checked(
        entry=entry,
        outcome=outcome,
        passages=len(gains),
        fresh=sum(is_fresh(table, name) for name in gains),
        mean=mean,
        lower=lower,
        upper=upper,
        reason=reason,
    )


def _is_charged(run: TrialRecord) -> bool:
    """Return whether a failed run is held against the entry's ring, as a verdict does."""
    if run.failed_arm is None:  # nobody knows, so that the arm whose run it is must answer for it
        return run.arm == "arm" and run.kind != "interrupted"
    return run.failed_arm == "arm"
