"""The serving side of a trial process: a server that forks one process for each pair.

One JSON object a line comes in on stdin and goes out on stdout. The server has imported torch
and, on a CPU, loaded the model; it never computes with more than one thread, because a process
forked after a thread pool was started would wait for ever for threads that it does not have.
Each pair runs in a fork of its own, so that a crash ends that pair only; with isolation ``worker``
one fork runs pair after pair until a pair ends it, which spares a GPU the loading of the model. All
of them die with the driver: by a signal of the system where it has one, else at the end of stdin.

In:   {"op": "describe", "passages": [...], "plans": [...]}
      {"op": "pair", "spec": {...}, "timeout_s": 60}
Out:  {"event": "facts" | "side" | "run" | "wrong" | "failed" | "blamed" | "refused" | "end", ...}
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Literal, NoReturn, Protocol, get_args

from strata.errors import BudgetError, StrataError
from strata.tuner.arms import PairSpec
from strata.tuner.blame import find_failed_arm, is_out_of_memory, known_at_once
from strata.tuner.environment import EngineFacts
from strata.tuner.measure import (
    Bench,
    RunResult,
    SideError,
    WrongOutputError,
    as_columns,
    measure_pair,
)

Isolation = Literal["process", "worker"]
ISOLATIONS: tuple[str, ...] = get_args(Isolation)
"""A process for each pair, or one for all pairs of a worker until one of them ends it."""

POLL_S = 0.05
IDLE_S = 3600.0
_PR_SET_PDEATHSIG = 1
Emit = Callable[[dict[str, Any]], None]


class Engine(Protocol):
    """What the server measures; `strata.tuner.trial` has the real one."""

    def prepare(self) -> None:
        """Do once, before any fork, what all forks can share."""

    def describe(self, passages: list[str], plans: list[str]) -> EngineFacts:
        """Return the facts of a study over these passages; runs in a fork.

        Raises StrataError for a plan, as JSON, with an arm that no session can have.
        """

    def conditions(self) -> dict[str, Any]:
        """Return what the machine is like at this moment; runs in a fork, just after a run."""

    def open_bench(self, spec: PairSpec, ring_cells: int) -> Bench:
        """Return what times one side of a pair; runs in a fork."""


def serve(engine: Engine, *, parent: int, isolation: Isolation = "process") -> int:
    """Answer requests until stdin ends; return the exit status."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever the engine prints goes to the log
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer

    def emit(event: dict[str, Any]) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    try:
        engine.prepare()
    except StrataError as error:
        emit({"event": "refused", "message": str(error)})
        return 2

    gc.freeze()  # a fork's collections need not look at all that was imported, nor copy it

    def work(request: dict[str, Any]) -> None:
        if request["op"] == "describe":
            _describe(engine, request, emit)
        else:
            _run_pair(engine, request, emit, isolation)

    forks = _Forks(work, emit, keep=isolation == "worker")
    for line in _lines(sys.stdin):
        forks.answer(json.loads(line))
    return 0


def die_with_parent(parent: int) -> None:
    """Have the system end this process when the process `parent` has ended."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def _lines(stream: IO[str]) -> Any:
    """Yield lines as they come; iterating over the file itself would read ahead."""
    return iter(stream.readline, "")


@dataclass(frozen=True, slots=True)
class _Child:
    """A forked process that takes requests as lines and answers each with one byte."""

    pid: int
    requests: int
    answers: int
    pidfd: int | None
    """Readable once the process has ended; None where the system has no such thing."""

    def close(self) -> None:
        for end in (self.requests, self.answers, self.pidfd):
            if end is not None:
                os.close(end)


class _Forks:
    """Does each request in a forked process: in one of its own, or all in one that is kept.

    Whatever ends a process ends the request it was at, and no other.
    """

    def __init__(self, work: Callable[[dict[str, Any]], None], emit: Emit, *, keep: bool) -> None:
        self._work = work
        self._emit = emit
        self._keep = keep
        self._child: _Child | None = None

    def answer(self, request: dict[str, Any]) -> None:
        """Do a request, end its process when its time is over, and report how it ended."""
        child = self._child or self._fork()
        with suppress(BrokenPipeError):  # a kept process that ended since is noticed below
            os.write(child.requests, json.dumps(request).encode() + b"\n")
        code, timed_out = _wait(child, request.get("timeout_s"))
        if code is None:
            self._child = child
        else:
            child.close()
            self._child = None
        self._emit({"event": "end", "exit": code or 0, "timed_out": timed_out})

    def _fork(self) -> _Child:
        server = os.getpid()
        requests, to_child = os.pipe()
        from_child, answers = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(to_child)
            os.close(from_child)
            self._in_child(server, requests, answers)
        os.close(requests)
        os.close(answers)
        return _Child(pid, to_child, from_child, _pidfd(pid))

    def _in_child(self, server: int, requests: int, answers: int) -> NoReturn:
        status = 1
        try:
            die_with_parent(server)
            with os.fdopen(requests, encoding="utf-8") as lines:
                for line in _lines(lines):
                    self._work(json.loads(line))
                    if not self._keep:
                        break
                    gc.collect()  # what a pair has left must not lie beside the next one
                    os.write(answers, b".")
            status = 0
        except BaseException as error:  # the fork must never return into the server
            traceback.print_exception(error)
        finally:
            sys.stderr.flush()
            os._exit(status)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not on every system
        return None


def _wait(child: _Child, timeout_s: float | None) -> tuple[int | None, bool]:
    """Wait for an answer or the end; return (exit status, whether time was up).

    The status is None where the child has answered and stays, and minus a signal's number where
    that ended it.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    watched = [child.answers] if child.pidfd is None else [child.answers, child.pidfd]
    longest = POLL_S if child.pidfd is None else IDLE_S
    while True:
        left = longest if deadline is None else min(longest, deadline - time.monotonic())
        ready = select.select(watched, [], [], max(0.0, left))[0]
        done, status = os.waitpid(child.pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), False
        if child.answers in ready:
            if os.read(child.answers, 1):
                return None, False
            _, status = os.waitpid(child.pid, 0)  # it has let go of the pipe: it is ending
            return os.waitstatus_to_exitcode(status), False
        if deadline is not None and time.monotonic() >= deadline:
            os.kill(child.pid, signal.SIGKILL)
            _, status = os.waitpid(child.pid, 0)
            return os.waitstatus_to_exitcode(status), True


def _describe(engine: Engine, request: dict[str, Any], emit: Emit) -> None:
    try:
        facts = engine.describe(request["passages"], request["plans"])
        emit({"event": "facts", "facts": facts.to_json()})
    except StrataError as error:
        emit({"event": "refused", "message": str(error)})


def _run_pair(engine: Engine, request: dict[str, Any], emit: Emit, isolation: Isolation) -> None:
    """Measure one pair and tell each run as it ends; a foreseen failure is told with its kind."""
    spec = PairSpec.from_json(request["spec"])
    try:
        runs = measure_pair(
            spec, engine.open_bench, lambda side: emit({"event": "side", "side": side})
        )
        for position, outcome in runs:
            if isinstance(outcome, RunResult):
                found = engine.conditions() | {"isolation": isolation}
                columns = {**as_columns(outcome), "conditions": found}
                emit({"event": "run", "position": position, "columns": columns})
            else:
                emit({"event": "wrong", "position": position, "message": outcome})
    except WrongOutputError as error:
        emit({"event": "failed", "kind": "wrong output", "message": str(error), "arm": None})
    except SideError as failure:
        _tell_failure(spec, engine, emit, failure)
    except Exception as error:
        emit({"event": "failed", "kind": "crash", "message": _sentence(error), "arm": None})
        raise


def _tell_failure(spec: PairSpec, engine: Engine, emit: Emit, failure: SideError) -> None:
    """Tell what a side failed of, then whose failure it is; let a crash end the process."""
    error = failure.__cause__
    assert isinstance(error, Exception)
    no_memory = isinstance(error, MemoryError | BudgetError) or is_out_of_memory(error)
    kind = "out of memory" if no_memory else "crash"
    arm = known_at_once(failure)
    emit({"event": "failed", "kind": kind, "message": _sentence(error), "arm": arm})
    emit({"event": "blamed", "arm": find_failed_arm(spec, engine.open_bench, failure)})
    if kind == "crash":
        raise error


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, StrataError) else f"{type(error).__name__}: {text}"
