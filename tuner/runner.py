"""The driving side of a trial process: starts the server, sends pairs, turns events into records.

Whatever happens to a pair, it ends as four records: runs that were measured keep their numbers,
the others carry the kind of what stopped them. Only an interrupt of the driver itself leaves no
record; that pair is simply measured again by the next sweep.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from strata.errors import StoreError, StrataError, UsageError
from strata.tuner.arms import ORDER, PairSpec
from strata.tuner.blame import FailedArm
from strata.tuner.environment import EngineFacts
from strata.tuner.record import TrialRecord, planned
from strata.tuner.worker import Isolation

GRACE_S = 15.0
"""How much longer than a pair's own timeout the server may be silent before it is replaced."""

START_TIMEOUT_S = 600.0
START_TRIES = 3
REAP_S = 1.0
MODULE = "strata.tuner.trial"


class ServerLostError(Exception):
    """Report that the trial server ended or fell silent."""


def server_command(*, model: str, device: str, isolation: Isolation = "process") -> tuple[str, ...]:
    """Return the command that starts the real trial server, whatever the current folder holds."""
    words = ("-P", "-m", MODULE, "--model", model, "--device", device, "--isolation", isolation)
    return (sys.executable, *words)


class ProcessRunner:
    """Runs pairs in forks of a server process, which it restarts when that is lost.

    `log` receives what the processes write to stderr. A system that ends a server with its parent
    ends it with the *thread* that started it, so one thread makes all calls but `stop`.
    """

    def __init__(self, command: Sequence[str], *, log: Path) -> None:
        self._command = [*command, "--parent", str(os.getpid())]
        self._log = log
        self._server: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._stopped = False
        self._starting = threading.Lock()

    def describe(self, passages: Sequence[str], plans: Sequence[str] = ()) -> EngineFacts:
        """Return the facts of the engine over `passages`; raise StrataError where it refuses.

        The engine is asked for every arm of each plan, given as JSON.
        What a signal ends is started again, START_TRIES times in all.
        """
        for left in reversed(range(START_TRIES)):
            try:
                facts, status = self._describe(passages, plans)
            except ServerLostError as error:
                was_killed = self._was_killed()
                self._end()
                if was_killed and left and not self._stopped:
                    continue
                raise StrataError(f"the trial process ended at its start: {error}") from None
            if facts is not None:
                return facts
            if status >= 0:
                break
        raise StrataError(f"the trial process failed at its start; its words are in {self._log}")

    def _describe(
        self, passages: Sequence[str], plans: Sequence[str]
    ) -> tuple[EngineFacts | None, int]:
        """Return the facts, None without, and how the process that was to find them ended."""
        facts = None
        self._send({"op": "describe", "passages": list(passages), "plans": list(plans)})
        while (event := self._receive(START_TIMEOUT_S))["event"] != "end":
            if event["event"] == "refused":
                raise UsageError(event["message"])
            facts = EngineFacts.from_json(event["facts"])
        return facts, event["exit"]

    def run_pair(
        self, spec: PairSpec, facts: EngineFacts, *, timeout_s: float
    ) -> list[TrialRecord]:
        """Run one pair and return its four records, whatever happened."""
        started_at = _now()
        results: dict[int, dict[str, Any]] = {}
        failure, side = Failure(), ""
        try:
            self._send({"op": "pair", "spec": spec.to_json(), "timeout_s": timeout_s})
            while (event := self._receive(timeout_s + GRACE_S))["event"] != "end":
                if event["event"] == "side":
                    side = event["side"]
                elif event["event"] == "run":
                    results[event["position"]] = {"kind": "ok", **event["columns"]}
                elif event["event"] == "wrong":
                    wrong = {"kind": "wrong output", "message": event["message"]}
                    results[event["position"]] = wrong
                elif event["event"] == "failed":
                    failure = Failure(event["kind"], event["message"], event["arm"])
                else:
                    failure = replace(failure, arm=event["arm"])
            if failure.is_told:  # what ended it since was the search for whose failure it is
                pass
            elif event["timed_out"]:
                failure = Failure("timeout", f"ended after {timeout_s:g} s", _arm_at(side))
            elif event["exit"] < 0:
                failure = Failure("crash", _signal_words(-event["exit"]), _arm_at(side))
        except ServerLostError as error:
            if not failure.is_told:
                failure = Failure("crash", str(error), _arm_at(side))
            self._end()
        return [
            _record(spec, position, facts, started_at, results.get(position), failure)
            for position in range(len(ORDER))
        ]

    def stop(self) -> None:
        """End the server for good; a call that waits for it in another thread returns soon."""
        with self._starting:
            self._stopped = True
            if self._server is not None:
                _kill_group(self._server)

    def close(self) -> None:
        """End the server and whatever it has forked; safe to call twice."""
        self.stop()
        self._end()

    def _end(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        _kill_group(server)
        server.wait()
        for pipe in (server.stdin, server.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def __enter__(self) -> ProcessRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._buffer = b""
        with self._starting, self._log.open("ab") as log:
            if self._stopped:
                raise ServerLostError("the sweep is being stopped")
            self._server = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the driver alone
                env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
            )
        return self._server

    def _send(self, request: dict[str, Any]) -> None:
        if self._server is None or self._server.poll() is not None:
            self._end()
            self._start()
        assert self._server is not None
        assert self._server.stdin is not None
        with suppress(BrokenPipeError):  # what it said before it ended is read next
            self._server.stdin.write(json.dumps(request).encode() + b"\n")
            self._server.stdin.flush()

    def _receive(self, seconds: float) -> dict[str, Any]:
        """Return the next event; raise ServerLostError at the end of the pipe or of the time."""
        assert self._server is not None
        assert self._server.stdout is not None
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._server.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise ServerLostError(f"the trial server was silent for {seconds:g} s")
                chunk = os.read(self._server.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise ServerLostError(self._last_words())
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event

    def _was_killed(self) -> bool:
        """Return whether a signal has ended the server; one that is only silent has not ended."""
        try:
            return self._server is not None and self._server.wait(REAP_S) < 0
        except subprocess.TimeoutExpired:
            return False

    def _last_words(self) -> str:
        """Return the last line that the server wrote to its log."""
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            lines = []
        words = next((line.strip() for line in reversed(lines) if line.strip()), "it left no word")
        return f"the trial server ended: {words[:300]}"


def _kill_group(server: subprocess.Popen[bytes]) -> None:
    """End a server that was not waited for yet, with all that it has forked."""
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)


def failed_records(
    spec: PairSpec, facts: EngineFacts, *, kind: str, message: str
) -> list[TrialRecord]:
    """Return the records of a pair of which no run came to an end."""
    now, failure = _now(), Failure(kind, message)
    return [_record(spec, position, facts, now, None, failure) for position in range(len(ORDER))]


@dataclass(frozen=True, slots=True)
class Failure:
    """What ended a pair, and whose failure it is as far as that is known."""

    kind: str = "crash"
    message: str = "the trial process ended without a word"
    arm: FailedArm | None = None

    @property
    def is_told(self) -> bool:
        """Return whether the trial process told it, so that its own end adds nothing."""
        return self != Failure()


def _arm_at(side: str) -> FailedArm | None:
    """Return whose failure the end of a process is, from the side that was at work.

    What ended it at the default ring's may have been the other session's doing.
    """
    return "arm" if side == "arm" else None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _record(
    spec: PairSpec,
    position: int,
    facts: EngineFacts,
    started_at: str,
    result: dict[str, Any] | None,
    failure: Failure,
) -> TrialRecord:
    failed = {"kind": failure.kind, "message": failure.message, "failed_arm": failure.arm}
    outcome = failed if result is None else {"message": "", **result}
    record = TrialRecord(
        **(planned(spec, position) | outcome),
        device=facts.device,
        model_hash=facts.model_hash,
        engine_version=facts.engine_version,
        started_at=started_at,
        worker=facts.worker,
    )
    if result is None:
        return record
    try:
        record.check(origin="the trial process")
    except StoreError as error:  # no store takes it, and one bad clock must not end a sweep
        told = Failure("crash", f"a run that nobody can have measured: {error}")
        return _record(spec, position, facts, started_at, None, told)
    return record


def _signal_words(number: int) -> str:
    words = f"ended by signal {number} ({signal.Signals(number).name})"
    if number == signal.SIGKILL:
        words += "; the system sends it when host memory runs out"
    return words
