"""Workers that measure pairs side by side, each on one machine; one thread waits for each.

A *worker* is anything that can say what it runs on and run one pair: a server process here
(`strata.tuner.runner`), or one on a node of a Ray cluster (`strata.tuner.cluster`). The driver's
own thread hands out pairs and hears what came of them, and it alone writes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from strata.errors import StrataError
from strata.tuner.arms import PairSpec
from strata.tuner.environment import EngineFacts
from strata.tuner.record import TrialRecord

MUST_AGREE = (
    "device",
    "model_hash",
    "kv_dtype",
    "default_ring_cells",
    "passages_sha256",
    "engine_version",
)
"""The facts in which every worker of a study is the same; what else differs is recorded."""

PATIENCE_S = 30.0
"""How long a stopped worker's thread is waited for; it only waits for a process that was ended."""


class WorkerLostError(Exception):
    """Report that a worker ended or cannot be reached, so that nobody knows how its pair went."""


class Worker(Protocol):
    """Measures pairs on one machine; a lost one is started again by the next `describe`."""

    def describe(self, passages: Sequence[str], plans: Sequence[str] = ()) -> EngineFacts:
        """Start, and return the facts; raise StrataError where it cannot take part.

        Each plan, as JSON, must be one that the engine can run there, arm by arm.
        """

    def run_pair(
        self, spec: PairSpec, facts: EngineFacts, *, timeout_s: float
    ) -> list[TrialRecord]:
        """Run one pair and return its records, whatever happened; raise WorkerLostError."""

    def stop(self) -> None:
        """End what runs, from another thread, so that a waiting call returns soon."""

    def close(self) -> None:
        """Let go of everything; safe to call twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A worker that waits for a pair."""

    slot: int
    facts: EngineFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A pair that ran; its worker waits for the next one."""

    slot: int
    pair: PairSpec
    records: list[TrialRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A pair whose worker was lost; the worker is being started again."""

    slot: int
    pair: PairSpec
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A worker that takes no part, or no more."""

    slot: int
    reason: str


Event = Ready | Done | Lost | Refused


@dataclass(slots=True)
class _Slot:
    """One worker, the thread that waits for it, and what it is to do; None ends it."""

    number: int
    worker: Worker
    pairs: queue.SimpleQueue[PairSpec | None] = field(default_factory=queue.SimpleQueue)
    thread: threading.Thread | None = None


class Pool:
    """Runs pairs on some workers, and tells what came of each."""

    def __init__(
        self,
        workers: Sequence[Worker],
        *,
        passages: Sequence[str],
        timeout_s: float,
        plans: Sequence[str] = (),
    ) -> None:
        self._passages = tuple(passages)
        self._plans = tuple(plans)
        self._timeout_s = timeout_s
        self._slots = [_Slot(number, worker) for number, worker in enumerate(workers)]
        self._events: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
        self._facts: EngineFacts | None = None
        self._early: list[Event] = []
        self._starting = {slot.number for slot in self._slots}
        self._idle: set[int] = set()
        self._busy: dict[int, PairSpec] = {}
        self._stopping = False

    def start(self) -> EngineFacts:
        """Start every worker and return the facts of the first in order that can take part.

        Raises StrataError, the first worker's, where none can.
        """
        self._begin(self._slots)
        found: dict[int, Event] = {}
        for number in range(len(self._slots)):
            while number not in found:
                event = self._next()
                found[event.slot] = event
                self._early.append(event)
            first = found[number]
            if isinstance(first, Ready):
                self._facts = first.facts
                return first.facts
        refused = found[0]
        assert isinstance(refused, Refused)
        raise StrataError(refused.reason)

    def add(self, workers: Sequence[Worker]) -> None:
        """Start more workers; each takes part where it agrees with the study's machine."""
        new = [_Slot(number, one) for number, one in enumerate(workers, start=len(self._slots))]
        self._slots += new
        self._starting |= {slot.number for slot in new}
        self._begin(new)

    def _begin(self, slots: Sequence[_Slot]) -> None:
        for slot in slots:
            slot.thread = threading.Thread(target=self._serve, args=(slot,), daemon=True)
            slot.thread.start()

    @property
    def facts(self) -> EngineFacts:
        """Return the facts of the study's machine; the pool was started."""
        assert self._facts is not None
        return self._facts

    @property
    def idle(self) -> tuple[int, ...]:
        """Return the workers that wait for a pair, in order."""
        return tuple(sorted(self._idle))

    @property
    def running(self) -> tuple[PairSpec, ...]:
        """Return the pairs that are being measured."""
        return tuple(self._busy.values())

    @property
    def alive(self) -> frozenset[int]:
        """Return the workers that measure, wait or start."""
        return frozenset(self._starting | self._idle | set(self._busy))

    def submit(self, slot: int, pair: PairSpec) -> None:
        """Have an idle worker measure a pair."""
        self._idle.remove(slot)
        self._busy[slot] = pair
        self._slots[slot].pairs.put(pair)

    def wait(self) -> Event:
        """Return the next thing that happens; what a worker's thread raised is raised here."""
        event = self._early.pop(0) if self._early else self._next()
        self._starting.discard(event.slot)
        self._idle.discard(event.slot)
        self._busy.pop(event.slot, None)
        if isinstance(event, Lost):
            self._starting.add(event.slot)
        if isinstance(event, Ready) and (reason := self._difference(event.facts)):
            self._slots[event.slot].pairs.put(None)
            event = Refused(slot=event.slot, reason=reason)
        if isinstance(event, Ready | Done):
            self._idle.add(event.slot)
        return event

    def close(self) -> None:
        """End every worker and its thread; safe to call twice."""
        self._stopping = True
        for slot in self._slots:
            slot.pairs.put(None)
            slot.worker.stop()
        for slot in self._slots:
            if slot.thread is not None:
                slot.thread.join(PATIENCE_S)
        for slot in self._slots:
            slot.worker.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _next(self) -> Event:
        event = self._events.get()
        if isinstance(event, BaseException):
            raise event
        return event

    def _difference(self, facts: EngineFacts) -> str:
        """Return in what a worker differs from the study's machine, or nothing."""
        if self._facts is None:
            return ""
        for name in MUST_AGREE:
            here, there = getattr(facts, name), getattr(self._facts, name)
            if here != there:
                return f"its {name} is {here} and the study's is {there}"
        return ""

    def _serve(self, slot: _Slot) -> None:
        """Start a worker and run what it is given; the whole life of its thread."""
        try:
            facts = slot.worker.describe(self._passages, self._plans)
            self._events.put(Ready(slot=slot.number, facts=facts))
            while (pair := slot.pairs.get()) is not None:
                try:
                    records = slot.worker.run_pair(pair, facts, timeout_s=self._timeout_s)
                except WorkerLostError as error:
                    self._events.put(Lost(slot=slot.number, pair=pair, reason=str(error)))
                    if self._stopping:
                        return
                    facts = slot.worker.describe(self._passages, self._plans)
                    self._events.put(Ready(slot=slot.number, facts=facts))
                    continue
                self._events.put(Done(slot=slot.number, pair=pair, records=records))
        except StrataError as error:
            self._events.put(Refused(slot=slot.number, reason=str(error)))
        except BaseException as error:  # the driver's thread is the one to fail with it
            self._events.put(error)
