"""Every way in which a pair can end, and that nothing outlives its driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fake_trial
import pytest
from tuner_samples import FACTS, all_pairs

from strata.errors import StrataError
from strata.tuner.arms import PairSpec
from strata.tuner.record import TrialRecord
from strata.tuner.runner import ProcessRunner
from strata.tuner.study import StudyRecord

COMMAND = [sys.executable, str(Path(__file__).with_name("fake_trial.py"))]


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[ProcessRunner]:
    with ProcessRunner(COMMAND, log=tmp_path / "trials.log") as runner:
        yield runner


def pair(study: StudyRecord, seed: int) -> PairSpec:
    first = next(one for one in all_pairs(study) if one.arm_ring_cells != one.default_ring_cells)
    return replace(first, passage=f"{first.tier_cells}:{seed}")


def run(runner: ProcessRunner, spec: PairSpec, timeout_s: float = 20.0) -> list[TrialRecord]:
    return runner.run_pair(spec, FACTS, timeout_s=timeout_s)


def test_facts_come_over_the_pipe(runner: ProcessRunner) -> None:
    assert runner.describe(["32:0"]) == FACTS


def test_a_pair_is_four_runs_in_order(runner: ProcessRunner, study: StudyRecord) -> None:
    spec = pair(study, 0)
    records = run(runner, spec)
    assert [one.kind for one in records] == ["ok"] * 4
    assert [one.arm for one in records] == ["default", "arm", "arm", "default"]
    assert [one.trial_id for one in records] == [spec.trial_id(i) for i in range(4)]
    assert records[0].ring_cells == spec.default_ring_cells
    assert records[1].ring_cells == spec.arm_ring_cells
    assert records[0].rounds_per_s == (spec.max_new - 1) / 0.01


@pytest.mark.parametrize(
    ("seed", "kinds", "words"),
    [
        (fake_trial.CRASH, ["ok", "crash", "crash", "crash"], "ZeroDivisionError: a bug"),
        (fake_trial.LATE, ["ok", "crash", "crash", "crash"], "ZeroDivisionError: a bug"),
        (fake_trial.KILLED, ["ok", "crash", "crash", "crash"], "signal 9"),
        (fake_trial.NO_MEMORY, ["out of memory"] * 4, "40 MiB cannot hold"),
        (fake_trial.TORCH_MEMORY, ["ok"] + ["out of memory"] * 3, "can't allocate"),
        (fake_trial.OTHER_TOKENS, ["ok", "wrong output", "wrong output", "ok"], "tokens bbb"),
        (fake_trial.OTHER_ROUNDS, ["ok", "wrong output", "wrong output", "ok"], "12 rounds"),
        (fake_trial.NO_TIME, ["ok", "crash", "crash", "ok"], "'rounds_per_s' cannot be inf"),
    ],
)
def test_a_failure_is_a_kind_and_never_a_zero(
    seed: int, kinds: list[str], words: str, runner: ProcessRunner, study: StudyRecord
) -> None:
    records = run(runner, pair(study, seed))
    assert [one.kind for one in records] == kinds
    for one in records:
        if one.kind == "ok":
            assert one.message == ""
        else:
            assert words in one.message
            assert one.rounds_per_s is None
            assert one.decode_s is None
    assert run(runner, pair(study, 0))[3].kind == "ok"  # the next pair is not harmed


@pytest.mark.parametrize(
    ("seed", "kind", "words", "failed_arm"),
    [
        (fake_trial.NO_MEMORY, "out of memory", "cannot hold", "arm"),
        (fake_trial.TORCH_MEMORY, "out of memory", "can't allocate", "arm"),
        (fake_trial.BOTH, "out of memory", "no room for the ring", "both"),
        (fake_trial.BESIDE, "out of memory", "no room for the default", "arm"),
        (fake_trial.ALONE, "out of memory", "no room for the default", "default"),
        (fake_trial.HANG_AFTER, "out of memory", "no room for the ring", "arm"),
        (fake_trial.KILLED_OPENING, "crash", "signal 9", "arm"),
        (fake_trial.CRASH, "crash", "a bug", "arm"),
        (fake_trial.OTHER_TOKENS, "wrong output", "differ", None),
    ],
)
def test_a_record_says_whose_failure_it_is(
    seed: int,
    kind: str,
    words: str,
    failed_arm: str | None,
    runner: ProcessRunner,
    study: StudyRecord,
) -> None:
    """The default is tried alone: what fails only beside the other ring is that ring's failure."""
    spec = pair(study, seed)
    failed = [one for one in run(runner, spec, timeout_s=1.0) if one.kind != "ok"]
    assert {(one.kind, one.failed_arm) for one in failed} == {(kind, failed_arm)}
    assert all(words in one.message for one in failed)
    assert TrialRecord.from_json(failed[0].to_json()) == failed[0]


def test_a_hanging_trial_is_ended_and_is_a_timeout(
    runner: ProcessRunner, study: StudyRecord
) -> None:
    records = run(runner, pair(study, fake_trial.HANG), timeout_s=0.5)
    assert [one.kind for one in records] == ["ok", "timeout", "timeout", "timeout"]
    assert run(runner, pair(study, 0))[3].kind == "ok"


def test_a_lost_server_is_a_crash_and_is_replaced(
    runner: ProcessRunner, study: StudyRecord
) -> None:
    records = run(runner, pair(study, fake_trial.KILL_SERVER))
    assert [one.kind for one in records] == ["ok", "crash", "crash", "crash"]
    assert run(runner, pair(study, 0))[3].kind == "ok"


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such engine')"]
    with (
        ProcessRunner(command, log=tmp_path / "log") as runner,
        pytest.raises(StrataError, match="no such engine"),
    ):
        runner.describe([])


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_start_that_a_signal_ends_is_tried_again(times: int, tmp_path: Path) -> None:
    """The first so many servers are killed at their start; three are too many."""
    count = tmp_path / "count"
    script = (
        "import os, pathlib, runpy, sys\n"
        f"count = pathlib.Path({str(count)!r})\n"
        "started = int(count.read_text()) if count.exists() else 0\n"
        "count.write_text(str(started + 1))\n"
        f"if started < {times}: os.kill(os.getpid(), 9)\n"
        f"sys.path.insert(0, {str(Path(COMMAND[1]).parent)!r})\n"
        f"runpy.run_path({COMMAND[1]!r}, run_name='__main__')\n"
    )
    with ProcessRunner([sys.executable, "-c", script], log=tmp_path / "log") as runner:
        if times < 3:
            assert runner.describe([]) == FACTS
        else:
            with pytest.raises(StrataError, match="ended at its start"):
                runner.describe([])
    assert int(count.read_text()) == min(3, times + 1)


DRIVER = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path(sys.argv[1]).parent))
import json
from tuner_samples import FACTS
from strata.tuner.arms import PairSpec
from strata.tuner.runner import ProcessRunner
command = [sys.executable, sys.argv[1], "--pids", sys.argv[2]]
runner = ProcessRunner(command, log=Path(sys.argv[2] + ".log"))
spec = PairSpec.from_json(json.loads(sys.argv[3]))
print("ready", flush=True)
runner.run_pair(spec, FACTS, timeout_s=60)
"""


def test_a_killed_driver_leaves_no_orphan(tmp_path: Path, study: StudyRecord) -> None:

    pids = tmp_path / "pids"
    spec = json.dumps(pair(study, fake_trial.HANG).to_json())
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, COMMAND[1], str(pids), spec])
    wait_until(lambda: pids.exists() and len(set(pids.read_text().split())) == 2)
    alive = [int(pid) for pid in set(pids.read_text().split())]
    assert all(is_alive(pid) for pid in alive)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    wait_until(lambda: not any(is_alive(pid) for pid in alive))


def is_alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def wait_until(condition: object, seconds: float = 20.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
