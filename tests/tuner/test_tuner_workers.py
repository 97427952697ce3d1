"""Many workers and one driver: the same set of trials, counted tries, and one process or many."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import fake_trial
import pytest
from tuner_samples import FACTS, all_pairs, make_records

from strata.errors import StrataError, UsageError
from strata.tuner import conditions as conditions_module
from strata.tuner.arms import ArmGrid, PairSpec
from strata.tuner.conditions import conditions, summarise_conditions
from strata.tuner.drive import Crew, _workers
from strata.tuner.environment import EngineFacts
from strata.tuner.pool import Pool, Worker, WorkerLostError
from strata.tuner.record import TrialRecord
from strata.tuner.runner import ProcessRunner
from strata.tuner.store import MemoryStore
from strata.tuner.store.base import Outcome
from strata.tuner.study import StudyRecord, create_study
from strata.tuner.sweep import sweep
from strata.tuner.tries import MAX_CRASHES, MAX_DRIVER_ENDS, MAX_LOSSES

COMMAND = [sys.executable, str(Path(__file__).with_name("fake_trial.py"))]


@dataclass
class Hands:
    """A worker without a process: what `fate` names by pair happens, once for each word."""

    name: str = "w0"
    device: str = FACTS.device
    fate: dict[str, list[str]] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    starts: int = 0
    limit: int = 10
    together: threading.Barrier | None = None

    def describe(self, passages: Sequence[str], plans: Sequence[str] = ()) -> EngineFacts:
        self.starts += 1
        if self.starts > self.limit:
            raise StrataError("the node is gone")
        return replace(FACTS, worker=self.name, device=self.device)

    def run_pair(
        self, spec: PairSpec, facts: EngineFacts, *, timeout_s: float
    ) -> list[TrialRecord]:
        if self.together is not None and not self.ran:
            self.together.wait(timeout=30)  # no worker is done before each has a pair
        self.ran.append(spec.pair_id)
        words = self.fate.get(spec.pair_id)
        word = words.pop(0) if words else "ok"
        if word == "lost":
            raise WorkerLostError("the node is gone")
        if word == "stop":
            raise KeyboardInterrupt
        rates = {} if word == "ok" else {"rounds_per_s": None}
        return make_records(spec, kind=word, worker=facts.worker, **rates)

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


def run(study: StudyRecord, store: MemoryStore, *workers: Worker) -> list[str]:
    """Sweep and return what was noted."""
    store.add_study(study)
    notes: list[str] = []
    with Pool(workers, passages=(), timeout_s=60) as pool:
        pool.start()
        sweep(study, store, pool, on_note=notes.append)
    return notes


def assert_whole(study: StudyRecord, store: MemoryStore) -> None:
    planned = [pair.trial_id(position) for pair in all_pairs(study) for position in range(4)]
    assert Counter(one.trial_id for one in store.trials(study.study)) == Counter(planned)


@pytest.mark.parametrize("sampler", ["grid", "random", "tpe", "gp", "cost-model"])
def test_many_workers_measure_what_one_does(grid: ArmGrid, sampler: str) -> None:
    study = create_study(
        ArmGrid(grid.plan.with_sampler(sampler), grid.default_ring_cells),
        FACTS,
        created_at="2026-01-02T03:04:05+00:00",
    )
    together = threading.Barrier(5)
    hands = [Hands(name=f"w{number}", together=together) for number in range(5)]
    store = MemoryStore()
    assert run(study, store, *hands) == []
    assert_whole(study, store)
    ran = [pair for one in hands for pair in one.ran]
    assert len(ran) == len(set(ran)) == len(all_pairs(study))
    machine = {pair: one.name for one in hands for pair in one.ran}
    assert all(one.worker == machine[one.pair_id] for one in store.trials(study.study))


def test_a_crash_is_tried_once_more_and_then_is_the_result(study: StudyRecord) -> None:
    first, second, *_ = (pair.pair_id for pair in all_pairs(study))
    hands, store = Hands(fate={first: ["crash"], second: ["crash"] * 9}), MemoryStore()
    run(study, store, hands)
    assert_whole(study, store)
    kinds = {one.pair_id: one.kind for one in store.trials(study.study)}
    assert (kinds[first], kinds[second]) == ("ok", "crash")
    assert (hands.ran.count(first), hands.ran.count(second)) == (2, MAX_CRASHES)
    again = Hands()
    run(study, store, again)
    assert again.ran == []


@pytest.mark.parametrize("kind", ["timeout", "out of memory", "wrong output"])
def test_what_would_happen_again_is_not_tried_again(kind: str, study: StudyRecord) -> None:
    first = all_pairs(study)[0].pair_id
    hands, store = Hands(fate={first: [kind]}), MemoryStore()
    run(study, store, hands)
    assert hands.ran.count(first) == 1
    assert {one.kind for one in store.trials(study.study) if one.pair_id == first} == {kind}


def test_a_lost_workers_pair_is_tried_elsewhere(study: StudyRecord) -> None:
    """The first pair of either worker loses it; the other one takes it over."""
    together = threading.Barrier(2)
    fate = {pair.pair_id: ["lost"] for pair in all_pairs(study)}
    one, other = (Hands(name=name, together=together) for name in ("w0", "w1"))
    one.fate, one.limit = fate, 100
    store = MemoryStore()
    notes = run(study, store, one, other)
    assert_whole(study, store)
    assert {record.kind for record in store.trials(study.study)} == {"ok"}
    assert notes
    assert all("its pair is tried again" in note for note in notes)
    lost = set(one.ran) - {r.pair_id for r in store.trials(study.study) if r.worker == "w0"}
    assert lost <= set(other.ran)


def test_a_pair_that_loses_every_worker_is_given_up(study: StudyRecord) -> None:
    first = all_pairs(study)[0].pair_id
    hands, store = Hands(fate={first: ["lost"] * 9}), MemoryStore()
    run(study, store, hands)
    assert_whole(study, store)
    failed = [one for one in store.trials(study.study) if one.kind != "ok"]
    assert {one.pair_id for one in failed} == {first}
    assert failed[0].kind == "crash"
    assert failed[0].message.startswith(f"its worker was lost {MAX_LOSSES} times")
    assert hands.ran.count(first) == MAX_LOSSES


@pytest.mark.parametrize(
    ("noted", "runs"),
    [
        (["begun"] * MAX_DRIVER_ENDS, False),
        (["begun"] * (MAX_DRIVER_ENDS - 1), True),
        (["begun", "interrupted"] * 20, True),
        (["begun", "crash"] * MAX_CRASHES, False),
        (["begun", "lost"] * MAX_LOSSES, False),
        (["begun", "crash", "begun", "lost", "begun", "lost"], True),
    ],
)
def test_tries_count_over_every_sweep(noted: list[Outcome], runs: bool, study: StudyRecord) -> None:
    store, hands, pair = MemoryStore(), Hands(), all_pairs(study)[0]
    store.add_study(study)
    for outcome in noted:
        store.add_try(study.study, pair.pair_id, outcome)
    run(study, store, hands)
    assert_whole(study, store)
    assert (pair.pair_id in hands.ran) is runs
    kinds = {one.kind for one in store.trials(study.study) if one.pair_id == pair.pair_id}
    assert kinds == {"ok" if runs else "crash"}


def test_an_interrupted_try_does_not_count(study: StudyRecord) -> None:
    first, store = all_pairs(study)[0].pair_id, MemoryStore()
    for _ in range(2 * MAX_DRIVER_ENDS):
        with pytest.raises(KeyboardInterrupt):
            run(study, store, Hands(fate={one.pair_id: ["stop"] for one in all_pairs(study)}))
    run(study, store, Hands())
    assert_whole(study, store)
    assert {one.kind for one in store.trials(study.study)} == {"ok"}
    assert first in {one.pair_id for one in store.trials(study.study)}


def test_a_worker_of_another_device_takes_no_part(study: StudyRecord) -> None:
    store, other = MemoryStore(), Hands(device="cpu: other")
    notes = run(study, store, Hands(), other)
    assert_whole(study, store)
    assert other.ran == []
    assert notes in ([], ["worker 1 takes no part: its device is cpu: other and the study's is "
                          "cpu: test"])  # fmt: skip


def test_a_worker_that_cannot_start_leaves_the_rest_to_the_others(study: StudyRecord) -> None:
    store, gone = MemoryStore(), Hands(limit=0)
    notes = run(study, store, gone, Hands(name="w1"))
    assert_whole(study, store)
    assert notes == ["worker 0 takes no part: the node is gone"]
    assert {one.worker for one in store.trials(study.study)} == {"w1"}


def test_without_a_worker_there_is_one_sentence(study: StudyRecord) -> None:
    with pytest.raises(StrataError, match="the node is gone"):
        run(study, MemoryStore(), Hands(limit=0), Hands(limit=0))
    store = MemoryStore()
    fate = {pair.pair_id: ["lost"] for pair in all_pairs(study)}
    with pytest.raises(StrataError, match="no worker is left; every finished pair is stored"):
        run(study, store, Hands(limit=1, fate=fate))
    assert_resumed(study, store)


def assert_resumed(study: StudyRecord, store: MemoryStore) -> None:
    run(study, store, Hands())
    assert_whole(study, store)


@pytest.fixture(params=["process", "worker"])
def isolated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ProcessRunner]:
    words = ["--isolation", request.param, "--pids", str(tmp_path / "pids")]
    with ProcessRunner([*COMMAND, *words], log=tmp_path / "trials.log") as runner:
        yield runner


def test_isolation_says_how_many_processes_run_the_pairs(
    isolated: ProcessRunner, study: StudyRecord, tmp_path: Path
) -> None:
    pairs = [one for one in all_pairs(study) if one.arm_ring_cells == 32][:3]
    runs = [isolated.run_pair(pair, FACTS, timeout_s=20) for pair in pairs]
    assert {one.kind for records in runs for one in records} == {"ok"}
    assert runs[0][0].conditions is not None
    isolation = runs[0][0].conditions["isolation"]
    server, *forks = dict.fromkeys((tmp_path / "pids").read_text().split())
    assert len(forks) == {"process": 3, "worker": 1}[isolation]
    assert str(runs[0][0].conditions["server"]) == server


@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        (fake_trial.CRASH, "crash"),
        (fake_trial.KILLED, "crash"),
        (fake_trial.HANG, "timeout"),
        (fake_trial.KILL_SERVER, "crash"),
        (fake_trial.NO_MEMORY, "out of memory"),
    ],
)
def test_whatever_ends_a_pair_the_next_one_runs(
    isolated: ProcessRunner, seed: int, kind: str, study: StudyRecord
) -> None:
    good = next(one for one in all_pairs(study) if one.arm_ring_cells == 32)
    bad = replace(good, passage=f"{good.tier_cells}:{seed}")
    assert isolated.run_pair(good, FACTS, timeout_s=20)[3].kind == "ok"
    records = isolated.run_pair(bad, FACTS, timeout_s=2 if kind == "timeout" else 20)
    assert records[3].kind == kind
    assert isolated.run_pair(good, FACTS, timeout_s=20)[3].kind == "ok"


def test_a_stopped_runner_starts_nothing(isolated: ProcessRunner, study: StudyRecord) -> None:
    isolated.stop()
    records = isolated.run_pair(all_pairs(study)[0], FACTS, timeout_s=20)
    assert records[0].message == "the sweep is being stopped"


@pytest.mark.parametrize(
    ("words", "crew"),
    [
        (("1", "process"), Crew()),
        (("4", "worker"), Crew(count=4, isolation="worker")),
        (("ray", "process"), Crew(count=None, ray=True)),
        (("ray:2", "process"), Crew(count=2, ray=True)),
    ],
)
def test_a_crew_is_read(words: tuple[str, str], crew: Crew) -> None:
    assert Crew.parse(*words) == crew


@pytest.mark.parametrize(
    "workers", ["0", "-1", "ray:0", "ray:", ":2", "two", "", "1.5", "²", "9" * 9]
)
def test_no_crew_is_one_sentence(workers: str) -> None:
    with pytest.raises(UsageError, match="is not 1 to 1024, ray, or ray and a number"):
        Crew.parse(workers, "process")
    with pytest.raises(UsageError, match="--isolation: 'thread' is none of process, worker"):
        Crew.parse("1", "thread")


def test_one_gpu_is_not_shared(grid: ArmGrid, tmp_path: Path) -> None:
    with ExitStack() as stack, pytest.raises(UsageError, match="cuda:1 is one GPU, and 2 workers"):
        _workers(Crew(count=2), grid.plan, device="cuda:1", log=tmp_path / "log", stack=stack)


class Nvml:
    """A driver that tells some things, refuses one, and lacks a function."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    nvmlClocksThrottleReasonAll = 6
    nvmlClocksThrottleReasonNone = 0
    nvmlClocksThrottleReasonGpuIdle = 1
    nvmlClocksThrottleReasonSwPowerCap = 4

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-here":
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetName(self, handle: str) -> bytes:
        return b"NVIDIA H200"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 412_500

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: str) -> int:
        raise self.NVMLError

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 4

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Nvml.Process]:
        return [self.Process(os.getpid()), self.Process(1)]

    @dataclass
    class Process:
        pid: int


def test_what_the_gpus_driver_tells_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions_module, "_nvml", Nvml)
    found = conditions(gpu_uuid="GPU-here")
    assert found.pop("host")
    found.pop("load_average_1min", None)
    assert found == {
        "gpu": "NVIDIA H200",
        "gpu_uuid": "GPU-here",
        "gpu_driver": "580.1",
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "power_w": 412.5,
        "clock_limits": ["SwPowerCap"],
        "other_gpu_processes": 1,
    }
    assert "gpu" not in conditions(gpu_uuid="GPU-elsewhere")


def test_a_study_says_how_its_machines_were(study: StudyRecord) -> None:
    pairs = all_pairs(study)
    hot = {"host": "b", "sm_clock_mhz": 1500, "temperature_c": 80, "clock_limits": ["SwPowerCap"]}
    cool = {"host": "a", "sm_clock_mhz": 1980, "temperature_c": 40, "clock_limits": []}
    records = make_records(pairs[0], conditions=cool)
    records += make_records(pairs[1], conditions=hot, worker="w1")
    records += make_records(pairs[2], kind="crash")
    assert summarise_conditions(records) == [
        ("machines", "2 (a, b)"),
        ("GPU clock", "1500 to 1980 MHz"),
        ("GPU temperature", "40 to 80 C"),
        ("clocks limited by", "SwPowerCap in 4 of 8 runs"),
    ]
    assert summarise_conditions(records[8:]) == [("machines", "1")]


def test_without_a_gpu_nothing_is_recorded_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions_module, "_nvml", lambda: None)
    assert set(conditions(gpu_uuid="GPU-here")) <= {"host", "load_average_1min"}
