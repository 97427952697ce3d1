"""The loop of a sweep: ask for an arm, measure the pairs it still lacks, store each, tell.

What is stored is never measured again, whoever measured it; so going on after any interruption
is the same as starting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from strata.errors import StoreError
from strata.tuner.arms import ORDER, PairSpec
from strata.tuner.environment import EngineFacts
from strata.tuner.record import TrialRecord
from strata.tuner.sampler import ArmOrder
from strata.tuner.store import TrialStore
from strata.tuner.study import StudyRecord


class Runner(Protocol):
    """Runs one pair and returns its records, whatever happened."""

    def run_pair(
        self, spec: PairSpec, facts: EngineFacts, *, timeout_s: float
    ) -> list[TrialRecord]:
        """Run one pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a sweep is; `work` is in cells computed, which time is roughly linear in."""

    pair: PairSpec
    """The pair that was measured last."""
    records: tuple[TrialRecord, ...]
    done_pairs: int
    total_pairs: int
    done_work: int
    total_work: int
    work_here: int
    """The part of the work that this sweep did itself."""


def sweep(
    study: StudyRecord,
    store: TrialStore,
    runner: Runner,
    facts: EngineFacts,
    *,
    on_pair: Callable[[Progress], None] = lambda progress: None,
) -> int:
    """Measure every pair of a study that its store lacks; return how many there were.

    Each pair is in the store before the next one starts.
    """
    grid, plan = study.grid, study.read_plan()
    pairs = {arm: tuple(grid.pairs(arm, study=study.study)) for arm in grid.arms()}
    stored = store.trial_ids(study.study)
    every = [pair for of_arm in pairs.values() for pair in of_arm]
    done = {pair.pair_id for pair in every if is_stored(pair, stored)}
    records = store.trials(study.study)
    finished = {
        arm: mean_gain(records, of_arm)
        for arm, of_arm in pairs.items()
        if all(pair.pair_id in done for pair in of_arm)
    }
    before = frozenset(done)
    order = ArmOrder(grid, finished, [r for arm in finished for r in of_pairs(records, pairs[arm])])
    while (arm := order.ask()) is not None:
        for pair in pairs[arm]:
            if pair.pair_id in done:
                continue
            new = runner.run_pair(pair, facts, timeout_s=plan.measure.timeout_s)
            new = [one for one in new if one.trial_id not in stored]
            store.add_trials(new)
            records += new
            done.add(pair.pair_id)
            on_pair(_progress(pair, new, every, done, before))
        order.tell(arm, mean_gain(records, pairs[arm]), of_pairs(records, pairs[arm]))
    return len(done) - len(before)


def count_pairs(study: StudyRecord, store: TrialStore) -> tuple[int, int]:
    """Return (pairs stored, pairs of the plan)."""
    stored = store.trial_ids(study.study)
    grid = study.grid
    pairs = [pair for arm in grid.arms() for pair in grid.pairs(arm, study=study.study)]
    return sum(is_stored(pair, stored) for pair in pairs), len(pairs)


def is_stored(pair: PairSpec, stored: set[str]) -> bool:
    """Return whether every run of a pair is among the stored ids."""
    return all(pair.trial_id(position) in stored for position in range(len(ORDER)))


def pair_work(pair: PairSpec) -> int:
    """Return the work of a pair in cells: two prompts, and four answers at ten times the price."""
    return 2 * pair.depth_cells + 40 * pair.max_new


def mean_gain(records: Sequence[TrialRecord], pairs: Sequence[PairSpec]) -> float | None:
    """Return the mean log ratio of rounds/s, arm over default, over the usable pairs."""
    by_pair: dict[str, list[TrialRecord]] = {}
    for record in of_pairs(records, pairs):
        by_pair.setdefault(record.pair_id, []).append(record)
    gains = [gain for runs in by_pair.values() if (gain := pair_gain(runs)) is not None]
    return math.fsum(gains) / len(gains) if gains else None


def of_pairs(records: Sequence[TrialRecord], pairs: Sequence[PairSpec]) -> list[TrialRecord]:
    """Return the records that belong to some pairs."""
    ids = {pair.pair_id for pair in pairs}
    return [record for record in records if record.pair_id in ids]


def pair_gain(runs: Sequence[TrialRecord]) -> float | None:
    """Return the log ratio of one pair, None unless all of its runs are ok."""
    total = 0.0
    for run in runs:
        if run.kind != "ok" or not run.rounds_per_s:
            return None
        total += math.log(run.rounds_per_s) * (1 if run.arm == "arm" else -1)
    return total / (len(ORDER) / 2)


def refuse_repeat(study: StudyRecord, store: TrialStore, *, resume: bool, where: str) -> None:
    """Raise StoreError where a sweep would go on without having been asked to."""
    done, total = count_pairs(study, store)
    if done and not resume:
        raise StoreError(
            f"study {study.study} ({study.name}) has {done} of {total} pairs in {where}; go on "
            "with --resume, or measure anew into another file"
        )


def _progress(
    pair: PairSpec,
    new: Sequence[TrialRecord],
    every: Sequence[PairSpec],
    done: set[str],
    before: frozenset[str],
) -> Progress:
    work = {one.pair_id: pair_work(one) for one in every}
    return Progress(
        pair=pair,
        records=tuple(new),
        done_pairs=len(done),
        total_pairs=len(every),
        done_work=sum(work[one] for one in done),
        total_work=sum(work.values()),
        work_here=sum(work[one] for one in done - before),
    )
