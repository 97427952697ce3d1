"""The loop of a sweep: ask for an arm, measure the pairs it still lacks, store each, tell.

What is stored is never measured again, whoever measured it; so going on after any interruption
is the same as starting.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from strata.errors import StoreError, StrataError
from strata.tuner.arms import DECODE, ORDER, Arm, PairSpec
from strata.tuner.confirm import Confirmation
from strata.tuner.pool import Done, Lost, Pool, Refused
from strata.tuner.record import TrialRecord, last_tries
from strata.tuner.runner import failed_records
from strata.tuner.sampler import ArmOrder
from strata.tuner.store import TrialStore
from strata.tuner.study import StudyRecord
from strata.tuner.tries import Tries


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
    pool: Pool,
    *,
    retry: bool = False,
    on_pair: Callable[[Progress], None] = lambda progress: None,
    on_note: Callable[[str], None] = lambda words: None,
) -> int:
    """Measure every pair of a study that its store lacks; return how many there were.

    With `retry` the pairs that failed are measured again, and what they had given stays beside.

    With one worker each pair is in the store before the next one starts, and with many before its
    worker gets another. `on_note` hears what happens to workers. The order in which arms are asked
    for depends, with many workers, on which ends first; which pairs are measured never does.
    """
    return _Sweep(study, store, pool, retry, on_pair, on_note).run()


class _Sweep:
    """One sweep: what is done, what waits, what is to be tried again."""

    def __init__(
        self,
        study: StudyRecord,
        store: TrialStore,
        pool: Pool,
        retry: bool,
        on_pair: Callable[[Progress], None],
        on_note: Callable[[str], None],
    ) -> None:
        self._store, self._pool = store, pool
        self._on_pair, self._on_note = on_pair, on_note
        grid = study.grid
        self._pairs = {arm: tuple(grid.pairs(arm, study=study.study)) for arm in grid.arms()}
        self._confirmation = Confirmation(study)
        self._arm_of = {one.pair_id: arm for arm, many in self._pairs.items() for one in many}
        self._stored = store.trial_ids(study.study)
        every = store.every_trial(study.study)
        self._records = last_tries(every)
        self._retries = due_retries(every) if retry else {}
        self._done = {p.pair_id for p in self._arm_pairs() if self._is_stored(p)}
        self._waiting: deque[PairSpec] = deque()
        self._choose()
        self._before = frozenset(self._done)
        finished = {arm: many for arm, many in self._pairs.items() if self._is_finished(arm)}
        self._order = ArmOrder(
            grid,
            {arm: mean_gain(self._records, many) for arm, many in finished.items()},
            [one for many in finished.values() for one in of_pairs(self._records, many)],
        )
        self._tries = Tries(store, study.study)
        self._again: list[PairSpec] = []
        self._lost_on: dict[str, set[int]] = {}

    def run(self) -> int:
        """Measure until nothing is left; whatever stops it, the tries that run are noted."""
        try:
            while len(self._done) < len(self._expected()):
                self._hand_out()
                if len(self._done) < len(self._expected()):
                    self._hear()
        except BaseException:
            with suppress(StoreError):  # the first error is the one to report
                for pair in self._pool.running:
                    self._tries.end(pair, "interrupted")
            raise
        return len(self._done) - len(self._before)

    def _hand_out(self) -> None:
        """Give every idle worker a pair, while there is one."""
        for slot in self._pool.idle:
            while (pair := self._next(slot)) is not None:
                if words := self._tries.used_up(pair):
                    self._give_up(pair, words)
                    continue
                self._tries.begin(pair)
                self._pool.submit(slot, pair)
                break

    def _hear(self) -> None:
        """Wait for what happens next to a worker, and answer it."""
        if not self._pool.alive:
            raise StrataError(
                "no worker is left; every finished pair is stored, so starting again goes on"
            )
        event = self._pool.wait()
        if isinstance(event, Done):
            self._end(event.pair, event.records)
        elif isinstance(event, Lost):
            self._lose(event)
        elif isinstance(event, Refused):
            self._on_note(f"worker {event.slot} takes no part: {event.reason}")

    def _next(self, slot: int) -> PairSpec | None:
        """Return the pair for a worker: one to try again before any other, else the next arm's."""
        for pair in self._again:
            lost_on = self._lost_on.get(pair.pair_id, set())
            if slot not in lost_on or not self._pool.alive - lost_on:
                self._again.remove(pair)
                return pair
        while not self._waiting:
            if (arm := self._order.ask()) is None:
                return None
            self._waiting += [
                self._to_run(one) for one in self._pairs[arm] if one.pair_id not in self._done
            ]
        return self._waiting.popleft()

    def _end(self, pair: PairSpec, records: list[TrialRecord]) -> None:
        """Store what came of a pair, unless its process ended and may be tried again."""
        if any(record.kind == "crash" for record in records):
            self._tries.end(pair, "crash")
            if not self._tries.used_up(pair):
                self._again.append(pair)
                return
        self._keep(pair, records)

    def _lose(self, event: Lost) -> None:
        """Have a pair whose worker was lost tried by another one."""
        self._tries.end(event.pair, "lost")
        self._lost_on.setdefault(event.pair.pair_id, set()).add(event.slot)
        if words := self._tries.used_up(event.pair):
            self._give_up(event.pair, f"{words}; the last time: {event.reason}")
            return
        self._again.append(event.pair)
        self._on_note(f"worker {event.slot} was lost ({event.reason}); its pair is tried again")

    def _give_up(self, pair: PairSpec, words: str) -> None:
        self._keep(pair, failed_records(pair, self._pool.facts, kind="crash", message=words))

    def _keep(self, pair: PairSpec, records: list[TrialRecord]) -> None:
        """Store the records of a pair and tell the order when its arm is done."""
        new = [one for one in records if one.trial_id not in self._stored]
        self._store.add_trials(new)
        self._records = last_tries([*self._records, *new])
        self._done.add(pair.planned_id)
        arm = self._arm_of.get(pair.planned_id)
        if arm is not None and self._is_finished(arm):
            many = self._pairs[arm]
            mine = of_pairs(self._records, many)
            self._order.tell(arm, mean_gain(mine, many), mine)
            self._choose()
        self._on_pair(_progress(pair, new, self._expected(), self._done, self._before))

    def _choose(self) -> None:
        """Have the best ring of each (tier, mode) whose arms are all done confirmed."""
        for place in self._confirmation.open_places():
            if all(self._is_finished(arm) for arm in self._confirmation.arms_of(place)):
                for pair in self._confirmation.choose(place, self._records):
                    if self._is_stored(pair):
                        self._done.add(pair.pair_id)
                    else:
                        self._waiting.append(self._to_run(pair))

    def _is_stored(self, pair: PairSpec) -> bool:
        """Return whether a planned pair needs no run: it is stored, and not to be tried again."""
        return pair.pair_id not in self._retries and is_stored(pair, self._stored)

    def _to_run(self, pair: PairSpec) -> PairSpec:
        """Return the try of a planned pair that is due: its first, or the next one."""
        return replace(pair, retry=self._retries.get(pair.pair_id, 0))

    def _arm_pairs(self) -> list[PairSpec]:
        return [pair for of_arm in self._pairs.values() for pair in of_arm]

    def _expected(self) -> list[PairSpec]:
        """Return every pair that the sweep will come to, as far as that is known."""
        return [*self._arm_pairs(), *self._confirmation.expected()]

    def _is_finished(self, arm: Arm) -> bool:
        return all(pair.pair_id in self._done for pair in self._pairs[arm])


def due_pairs(study: StudyRecord, store: TrialStore) -> list[PairSpec]:
    """Return the pairs of the plan, as far as what is stored tells which ring is confirmed."""
    stored, grid = store.trial_ids(study.study), study.grid
    confirmation = Confirmation(study)
    of_arms = {arm: list(grid.pairs(arm, study=study.study)) for arm in grid.arms()}
    for place in confirmation.open_places():
        mine = [pair for arm in confirmation.arms_of(place) for pair in of_arms[arm]]
        if all(is_stored(pair, stored) for pair in mine):
            confirmation.choose(place, store.trials(study.study))
    return [*chain.from_iterable(of_arms.values()), *confirmation.expected()]


def count_pairs(
    study: StudyRecord, store: TrialStore, *, purpose: str | None = None
) -> tuple[int, int]:
    """Return (pairs stored, pairs of the plan as far as they are known), of one purpose or all."""
    stored = store.trial_ids(study.study)
    mine = [pair for pair in due_pairs(study, store) if purpose in (None, pair.purpose)]
    return sum(is_stored(pair, stored) for pair in mine), len(mine)


def is_stored(pair: PairSpec, stored: set[str]) -> bool:
    """Return whether every run of a pair is among the stored ids."""
    return all(pair.trial_id(position) in stored for position in range(len(ORDER)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What became of a study's pairs, each by its last try."""

    measured: int
    failed: dict[str, int]
    """Pairs by the kind of what stopped them."""
    first: TrialRecord | None
    """A run of the first pair that failed."""


def count_outcomes(records: Sequence[TrialRecord]) -> Outcomes:
    """Return how many pairs were measured and how many failed, by kind."""
    stopped = {one.pair_id: one for one in reversed(records) if one.kind != "ok"}
    kinds = Counter(one.kind for one in stopped.values())
    measured = len({one.pair_id for one in records}) - len(stopped)
    first = next((one for one in records if one.kind != "ok"), None)
    return Outcomes(measured=measured, failed=dict(kinds), first=first)


def due_retries(records: Sequence[TrialRecord]) -> dict[str, int]:
    """Return which repeat is due of the planned pairs that failed, by their ids.

    Wrong output is an error of the engine and passes with none of them.
    """
    tries: dict[str, set[str]] = {}
    for one in records:
        tries.setdefault(one.planned_id, set()).add(one.pair_id)
    last = last_tries(records)
    failed = {one.planned_id for one in last if one.kind != "ok"}
    wrong = {one.planned_id for one in last if one.kind == "wrong output"}
    return {pair: len(tries[pair]) for pair in failed - wrong}


def pair_work(pair: PairSpec) -> int:
    """Return the work of a pair in cells: four answers at ten times the price, or six prompts.

    The prompt that answers start from runs once a passage; every pair restores it.
    """
    if pair.purpose == "prefill":
        return 6 * pair.depth_cells
    return pair.depth_cells // 4 + 40 * pair.max_new


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
    return [record for record in records if record.planned_id in ids]


def pair_gain(runs: Sequence[TrialRecord]) -> float | None:
    """Return the log ratio of one pair, None unless all of its runs are ok and it was to decode."""
    total = 0.0
    for run in runs:
        if run.kind != "ok" or not run.rounds_per_s or run.purpose != DECODE:
            return None
        total += math.log(run.rounds_per_s) * (1 if run.arm == "arm" else -1)
    return total / (len(ORDER) / 2)


def refuse_repeat(study: StudyRecord, store: TrialStore, *, resume: bool, where: str) -> None:
    """Raise StoreError where a sweep would go on without having been asked to.

    One that is done measures nothing more, so it may be asked for again.
    """
    done, total = count_pairs(study, store)
    if 0 < done < total and not resume:
        raise StoreError(
            f"study {study.study} ({study.name}) has {done} of {total} pairs in {where}; "
            "go on with --resume, or measure anew into another file (--out, --db)"
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
