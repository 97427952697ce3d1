"""The serving side of a trial process: a server that forks one process for each pair.

One JSON object a line comes in on stdin and goes out on stdout. The server has imported torch
and, on a CPU, loaded the model; it never computes with more than one thread, because a process
forked after a thread pool was started would wait for ever for threads that it does not have.
Each pair runs in a fork of its own, so that a crash ends that pair only. All of them die with the
driver: by a signal of the system where it has one, else at the end of stdin.

In:   {"op": "describe", "passages": [...]}         {"op": "pair", "spec": {...}, "timeout_s": 60}
Out:  {"event": "facts" | "run" | "failed" | "refused" | "end", ...}
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import IO, Any, Protocol

from strata.errors import BudgetError, StrataError
from strata.tuner.arms import PairSpec
from strata.tuner.environment import EngineFacts
from strata.tuner.measure import (
    Bench,
    RunResult,
    WrongOutputError,
    as_columns,
    measure_pair,
)

_PR_SET_PDEATHSIG = 1
Emit = Callable[[dict[str, Any]], None]


class Engine(Protocol):
    """What the server measures; `strata.tuner.trial` has the real one."""

    def prepare(self) -> None:
        """Do once, before any fork, what all forks can share."""

    def describe(self, passages: list[str]) -> EngineFacts:
        """Return the facts of a study over these passages; runs in a fork."""

    def open_bench(self, spec: PairSpec, ring_cells: int) -> Bench:
        """Return a session after its prompt; runs in a fork."""


def serve(engine: Engine, *, parent: int) -> int:
    """Answer requests until stdin ends; return the exit status."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever the engine prints goes to the log
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to answer
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})

    def emit(event: dict[str, Any]) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    try:
        engine.prepare()
    except StrataError as error:
        emit({"event": "refused", "message": str(error)})
        return 2
    for line in _lines(sys.stdin):
        request = json.loads(line)
        work = partial(_describe if request["op"] == "describe" else _run_pair, engine, request)
        _in_fork(partial(work, emit), emit, request.get("timeout_s"))
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


def _in_fork(work: Callable[[], None], emit: Emit, timeout_s: float | None) -> None:
    """Do `work` in a fork, end it when its time is over, and report how it ended."""
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            die_with_parent(server)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            work()
            status = 0
        except BaseException as error:  # the fork must never return into the server
            traceback.print_exception(error)
        finally:
            sys.stderr.flush()
            os._exit(status)
    code, timed_out = _wait(pid, timeout_s)
    emit({"event": "end", "exit": code, "timed_out": timed_out})


def _wait(pid: int, timeout_s: float | None) -> tuple[int, bool]:
    """Return (exit status, minus the signal's number where one ended it; whether time was up)."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status), False
        left = 3600.0 if deadline is None else deadline - time.monotonic()
        if left <= 0:
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            return os.waitstatus_to_exitcode(status), True
        _wait_for_child(left)


def _wait_for_child(seconds: float) -> None:
    if hasattr(signal, "sigtimedwait"):
        signal.sigtimedwait({signal.SIGCHLD}, seconds)
    else:
        time.sleep(min(seconds, 0.05))


def _describe(engine: Engine, request: dict[str, Any], emit: Emit) -> None:
    try:
        emit({"event": "facts", "facts": engine.describe(request["passages"]).to_json()})
    except StrataError as error:
        emit({"event": "refused", "message": str(error)})


def _run_pair(engine: Engine, request: dict[str, Any], emit: Emit) -> None:
    """Measure one pair and tell each run as it ends; a foreseen failure is told with its kind."""
    spec = PairSpec.from_json(request["spec"])
    try:
        for position, outcome in measure_pair(spec, lambda ring: engine.open_bench(spec, ring)):
            if isinstance(outcome, RunResult):
                emit({"event": "run", "position": position, "columns": as_columns(outcome)})
            else:
                emit({"event": "wrong", "position": position, "message": outcome})
    except WrongOutputError as error:
        emit({"event": "failed", "kind": "wrong output", "message": str(error)})
    except (MemoryError, BudgetError) as error:
        emit({"event": "failed", "kind": "out of memory", "message": _sentence(error)})
    except Exception as error:
        kind = "out of memory" if is_out_of_memory(error) else "crash"
        emit({"event": "failed", "kind": kind, "message": _sentence(error)})
        if kind == "crash":
            raise


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error of torch says that memory ran out, on a GPU or on the host."""
    text = str(error).lower()
    return type(error).__name__ == "OutOfMemoryError" or any(
        sign in text
        for sign in ("out of memory", "can't allocate memory", "cannot allocate memory")
    )


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, StrataError) else f"{type(error).__name__}: {text}"
