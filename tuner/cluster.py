"""Workers on the nodes of a Ray cluster: an actor holds a trial server where the GPU is.

Ray places the actors and tells when one is lost; all else is as on one machine. The actor starts
the same server process as `strata tune` does here, so a trial is a process of its own there too,
and the system ends it with the actor. (Only this file imports ray.)
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata.errors import StrataError, UsageError
from strata.tuner.arms import PairSpec
from strata.tuner.environment import EngineFacts
from strata.tuner.pool import WorkerLostError
from strata.tuner.record import TrialRecord
from strata.tuner.runner import GRACE_S, START_TIMEOUT_S, ProcessRunner

ADDRESS = "RAY_ADDRESS"
"""Ray's own variable for the cluster to use."""

REACH_S = 5.0
MakeCommand = Callable[[], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What one worker takes of the cluster."""

    gpus: int
    cpus: float
    node: str | None = None
    """The node it is bound to; None leaves it to Ray."""


class Cluster:
    """A connection to the Ray cluster that runs here, or that RAY_ADDRESS names."""

    def __init__(self) -> None:
        self._ray = _import_ray()
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            _connect(self._ray)

    def places(self, device: str, count: int | None) -> list[Place]:
        """Return where workers go: one GPU each, or on CPUs one a node, which it has to itself.

        With a `count` there are so many, with one CPU each where there is no GPU. Raises UsageError
        where the cluster cannot give what is asked for.
        """
        total = self._ray.cluster_resources()
        gpus = int(total.get("GPU", 0))
        if ":" in device:
            raise UsageError(
                f"--device {device} names one GPU, and Ray gives each worker its own; use cuda"
            )
        if device == "cuda" and not gpus:
            raise UsageError("--device cuda: the Ray cluster has no GPU")
        if device == "cuda" or (device == "auto" and gpus):
            _check_count(count, gpus, "GPUs")
            return [Place(gpus=1, cpus=1)] * (count or gpus)
        cpus = int(total.get("CPU", 0))
        if count is not None or not cpus:
            _check_count(count or 1, cpus, "CPUs")
            return [Place(gpus=0, cpus=1)] * (count or 1)
        nodes = [one for one in self._ray.nodes() if one["Alive"] and one["Resources"].get("CPU")]
        return [Place(gpus=0, cpus=one["Resources"]["CPU"], node=one["NodeID"]) for one in nodes]

    def worker(self, place: Place, make_command: MakeCommand) -> RayWorker:
        """Return a worker that takes `place` when it starts; `make_command` is called there."""
        return RayWorker(self._ray, place, make_command)

    def close(self) -> None:
        """Leave a cluster that was not connected to before."""
        if self._is_ours:
            self._ray.shutdown()


class RayWorker:
    """A trial server behind an actor; the actor that is lost is replaced by the next `describe`."""

    def __init__(self, ray: Any, place: Place, make_command: MakeCommand) -> None:
        self._ray = ray
        self._place = place
        self._make_command = make_command
        self._actor: Any = None
        self._stopped = False

    def describe(self, passages: Sequence[str], plans: Sequence[str] = ()) -> EngineFacts:
        """Start an actor and return its facts; raise StrataError where it cannot take part."""
        self._end()
        if self._stopped:
            raise StrataError("the sweep is being stopped")
        actor = self._ray.remote(TrialActor)
        self._actor = actor.options(**self._options()).remote(self._make_command)
        try:
            answer = self._ray.get(
                self._actor.describe.remote(list(passages), list(plans)),
                timeout=START_TIMEOUT_S,
            )
        except self._ray.exceptions.GetTimeoutError:
            self._end()
            raise StrataError(
                f"Ray found no free place for it within {START_TIMEOUT_S:g} s"
            ) from None
        except self._ray.exceptions.RayError as error:
            self._end()
            raise StrataError(f"Ray could not start it: {_sentence(error)}") from None
        if "refused" in answer:
            raise StrataError(answer["refused"])
        return EngineFacts.from_json(answer["facts"])

    def run_pair(
        self, spec: PairSpec, facts: EngineFacts, *, timeout_s: float
    ) -> list[TrialRecord]:
        """Run one pair on the actor's node; raise WorkerLostError where the actor is gone."""
        longest = START_TIMEOUT_S + timeout_s + 2 * GRACE_S
        try:
            answer = self._ray.get(
                self._actor.run_pair.remote(spec.to_json(), facts.to_json(), timeout_s),
                timeout=longest,
            )
        except self._ray.exceptions.GetTimeoutError:
            raise WorkerLostError(f"silent for {longest:g} s") from None
        except self._ray.exceptions.RayError as error:
            raise WorkerLostError(_sentence(error)) from None
        return [TrialRecord.from_json(one, origin="a Ray worker") for one in answer]

    def stop(self) -> None:
        """End the actor; a call that waits for it in another thread returns soon."""
        self._stopped = True
        self._end()

    def close(self) -> None:
        """End the actor; safe to call twice."""
        self.stop()

    def _end(self) -> None:
        if self._actor is not None and self._ray.is_initialized():
            with suppress(Exception):  # it is gone, or the cluster is
                self._ray.kill(self._actor)

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "num_gpus": self._place.gpus,
            "num_cpus": self._place.cpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": "SPREAD",
        }
        if self._place.node is not None:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            strategy = NodeAffinitySchedulingStrategy(node_id=self._place.node, soft=False)
            options["scheduling_strategy"] = strategy
        return options


class TrialActor:
    """What runs on a node: a trial server and the pipe to it, as on one machine."""

    def __init__(self, make_command: MakeCommand) -> None:
        # Ray kills actors, so what they leave on the disk stays there. Linux is what Ray's own
        # GPU nodes run: there a file without a name still has a path while it is open.
        self._log = tempfile.TemporaryFile(prefix="strata-trials-")  # noqa: SIM115
        log = Path(f"/proc/{os.getpid()}/fd/{self._log.fileno()}")
        self._runner = ProcessRunner(make_command(), log=log if log.exists() else Path(os.devnull))

    def describe(self, passages: list[str], plans: list[str]) -> dict[str, Any]:
        """Return the facts of this node's engine, or why it refuses."""
        try:
            return {"facts": self._runner.describe(passages, plans).to_json()}
        except StrataError as error:
            return {"refused": f"{error} (on {socket.gethostname()})"}

    def run_pair(
        self, spec: dict[str, Any], facts: dict[str, Any], timeout_s: float
    ) -> list[dict[str, Any]]:
        """Run one pair and return its records as JSON."""
        records = self._runner.run_pair(
            PairSpec.from_json(spec), EngineFacts.from_json(facts), timeout_s=timeout_s
        )
        return [record.to_json() for record in records]


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise UsageError("--workers ray needs Ray: pip install 'strata[ray]'") from None
    return ray


def _connect(ray: Any) -> None:
    """Connect to the cluster; raise UsageError where there is none, before Ray waits for it."""
    address = os.environ.get(ADDRESS, "auto")
    if address not in ("auto", "local"):
        _reach(address)
    # Ray prints a page to stdout for each lost actor; the sweep says it in a line of its own.
    ray._private.worker._worker_logs_enabled = False
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except ConnectionError:
        if address == "auto":
            raise UsageError(
                "no Ray cluster runs here: start one with `ray start --head`, or name one with "
                f"{ADDRESS}=HOST:PORT"
            ) from None
        raise UsageError(
            f"the Ray cluster at {address} does not let this driver in; where it wants a token, "
            "set RAY_AUTH_MODE=token and copy its ~/.ray/auth_token here"
        ) from None
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"the Ray cluster at {address} refused: {_sentence(error)}") from None


def _reach(address: str) -> None:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"{ADDRESS}: {address!r} is not HOST:PORT")
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"the Ray cluster at {address} cannot be reached ({reason}); check {ADDRESS}"
        ) from None


def _check_count(count: int | None, there: int, what: str) -> None:
    if count is not None and count > there:
        raise UsageError(f"--workers ray:{count}: the Ray cluster has {there} {what}")


def _sentence(error: BaseException) -> str:
    """Return what an error of Ray says in its first line, with the cause that ends its page."""
    lines = [line.strip().rstrip(".:") for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    cause = f": {lines[-1]}" if len(lines) > 1 and "Error: " in lines[-1] else ""
    return (lines[0] + cause)[:300]
