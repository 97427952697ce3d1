"""A worker that answers with made-up figures, and a sweep over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tuner_samples import FACTS, make_records

from strata.tuner.arms import PairSpec
from strata.tuner.environment import EngineFacts
from strata.tuner.pool import Pool, Worker
from strata.tuner.record import TrialRecord
from strata.tuner.store import TrialStore
from strata.tuner.study import StudyRecord
from strata.tuner.sweep import Progress
from strata.tuner.sweep import sweep as sweep_pool


@dataclass
class ScriptedRunner:
    """Answers with made-up figures; stops the sweep after `stop_after` pairs."""

    stop_after: int | None = None
    kinds: dict[int, str] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)

    def run_pair(
        self, spec: PairSpec, facts: EngineFacts, *, timeout_s: float
    ) -> list[TrialRecord]:
        if self.stop_after is not None and len(self.ran) >= self.stop_after:
            raise KeyboardInterrupt
        self.ran.append(spec.pair_id)
        if kind := self.kinds.get(spec.arm_ring_cells):
            return make_records(spec, kind=kind, rounds_per_s=None)
        return make_records(spec, gain=1 + spec.arm_ring_cells / 1000)

    def describe(self, passages: Sequence[str], plans: Sequence[str] = ()) -> EngineFacts:
        return FACTS

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


def sweep(
    study: StudyRecord,
    store: TrialStore,
    *workers: Worker,
    retry: bool = False,
    on_pair: Callable[[Progress], None] = lambda progress: None,
    on_note: Callable[[str], None] = lambda words: None,
) -> int:
    with Pool(workers, passages=(), timeout_s=60) as pool:
        pool.start()
        return sweep_pool(study, store, pool, retry=retry, on_pair=on_pair, on_note=on_note)
