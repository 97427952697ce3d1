"""Kill the driver of a sweep, or one of its trials, at random moments; resume until it is done.

    python experiments/kill/run.py --kills 50 --out experiments/kill/results.json

One sweep of the real command (`strata tune`, the tests' tiny checkpoint, trials of a fraction of a
second) runs undisturbed. Another one of the same plan is killed: by a seed, SIGKILL goes to the
driver, to a trial server or to a trial in the middle of its run; a killed driver is started again
with --resume. Both must end with the same set of trials, none twice, and where a trial ended well
in both with the same tokens; no process, no lock and no half-written file may be left.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from strata.files import write_whole
from strata.tuner.record import TrialRecord
from strata.tuner.store import JsonlStore, TrialStore, open_database
from strata.tuner.study import StudyRecord

TINY = Path(__file__).resolve().parents[2] / "tests" / "data" / "tiny"
COMMAND = [sys.executable, "-c", "from strata.cli.main import main; main()", "tune"]
TARGETS = ("driver", "server", "trial")
WEIGHTS = (2, 1, 3)
PART_FAILED = 1
"""How a sweep ends where a pair was killed as often as one is tried."""
LONGEST_PAUSE_S = {"process": 1.2, "worker": 0.15}
"""Between a kill and the next one: a pair in a process of its own takes a second, one of a worker a
twentieth, and a sweep must not be done before its last kill."""
MOST_GIVEN_UP = 20
"""Drivers that may end by themselves; one that always does would be started for ever."""

PLAN = """
name = "kill"
[grid]
tiers = {tiers}
rings = [32, 64, 128]
default_ring = 64
[session]
mtp_window = 64
[passages]
search = [0]
fresh = {fresh}
[measure]
max_new = 12
timeout_s = 60.0
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What one run of the experiment does."""

    kills: int
    seed: int = 0
    workers: str = "1"
    isolation: str = "process"
    store: str = "database"
    tiers: tuple[int, ...] = (32, 64, 96)
    passages: int = 24

    def plan(self) -> str:
        fresh = list(range(1, self.passages))
        return PLAN.format(tiers=list(self.tiers), fresh=fresh)


@dataclass(slots=True)
class Course:
    """How a disturbed sweep went."""

    killed: list[str] = field(default_factory=list)
    drivers: int = 1
    gave_up: list[str] = field(default_factory=list)
    """The last words of drivers that ended by themselves, with an error."""


class Sweep:
    """One folder, its plan, and the command that sweeps it."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.folder = folder
        self.setup = setup
        self.log = folder / "driver.log"
        self._started_at = 0
        (folder / "runs").mkdir(parents=True)
        (folder / "kill.toml").write_text(setup.plan(), encoding="utf-8")

    def start(self) -> subprocess.Popen[bytes]:
        """Start a driver; with --resume it may be the first."""
        words = [str(self.folder / "kill.toml"), "--model", str(TINY)]
        words += ["--workers", self.setup.workers, "--isolation", self.setup.isolation]
        words += ["--retry", "failed"]  # a pair that was killed twice is a crash until then
        if self.setup.store == "database":
            words += ["--out", str(self.folder / "runs"), "--resume"]
        else:
            words = ["run-trials", *words, "--jsonl", str(self.folder / "runs" / "t.jsonl")]
        with self.log.open("ab") as log:
            self._started_at = log.tell()
            return subprocess.Popen(
                [*COMMAND, *words],
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def measures(self) -> bool:
        """Return whether the driver that was started last has named its study."""
        return b"pairs are stored" in self.log.read_bytes()[self._started_at :]

    def open_store(self) -> TrialStore:
        if self.setup.store == "database":
            return open_database(self.folder / "runs" / "strata.duckdb", must_exist=True)
        return JsonlStore(self.folder / "runs" / "t.jsonl")

    def read(self) -> tuple[list[StudyRecord], list[TrialRecord]]:
        """Return what is stored; that it opens at all shows that no lock was left."""
        with self.open_store() as store:
            studies = store.studies()
            return studies, [one for study in studies for one in store.trials(study.study)]

    def leftovers(self) -> list[str]:
        """Return files that no undisturbed sweep leaves."""
        known = {"strata.duckdb", "t.jsonl", "trials.log", "ring-policy.json", "report.html"}
        paths = (self.folder / "runs").rglob("*")
        return sorted(path.name for path in paths if path.is_file() and path.name not in known)


def undisturbed(sweep: Sweep) -> None:
    """Sweep from start to end."""
    status = sweep.start().wait()
    if status:
        raise SystemExit(f"the undisturbed sweep ended with {status}: {last_words(sweep)}")


def disturbed(sweep: Sweep) -> Course:
    """Sweep, killing as the seed says; return what was killed."""
    choose, course = random.Random(sweep.setup.seed), Course()
    driver = sweep.start()
    while len(course.killed) < sweep.setup.kills:
        wanted = choose.choices(TARGETS, WEIGHTS)[0]
        pause_s = choose.uniform(0.0, LONGEST_PAUSE_S[sweep.setup.isolation])
        victim = wait_for(driver, sweep, wanted, pause_s)
        if victim is None:
            if not driver.wait():
                raise SystemExit(
                    f"the sweep was done after {len(course.killed)} kills; give it more --passages"
                )
            course.gave_up.append(last_words(sweep))
            if len(course.gave_up) > MOST_GIVEN_UP:
                raise SystemExit(f"drivers end by themselves: {course.gave_up[-1]}")
            course.drivers += 1
            driver = sweep.start()
            continue
        os.kill(victim, signal.SIGKILL)
        course.killed.append(wanted)
        if wanted == "driver":
            driver.wait()
            course.drivers += 1
            driver = sweep.start()
    if driver.wait() == PART_FAILED:
        course.drivers += 1
        driver = sweep.start()
    if driver.wait():
        raise SystemExit(f"the last driver ended by itself: {last_words(sweep)}")
    return course


def wait_for(
    driver: subprocess.Popen[bytes], sweep: Sweep, wanted: str, pause_s: float
) -> int | None:
    """Return the victim once its driver measures and the pause is over; None where it is done.

    A driver measures when it has named its study; some of its workers may still be starting then.
    """
    ready_s = None
    while driver.poll() is None:
        if ready_s is None and sweep.measures():
            ready_s = time.monotonic()
        servers = children(driver.pid)
        trials = [trial for server in servers for trial in children(server)]
        if ready_s is not None and time.monotonic() - ready_s >= pause_s:
            found = {"driver": [driver.pid], "server": servers, "trial": trials}[wanted]
            if found:
                return found[-1]
        time.sleep(0.005)
    return None


def children(parent: int) -> list[int]:
    """Return the processes below one that are alive, oldest first."""
    try:
        listed = Path(f"/proc/{parent}/task").iterdir()
        text = " ".join((task / "children").read_text() for task in listed)
    except OSError:
        return []
    return sorted(map(int, text.split()))


def left_behind(sweep: Sweep) -> list[int]:
    """Return processes that still work in the folder of a sweep, a moment after its end."""
    deadline = time.monotonic() + 5
    while (found := mentioning(str(TINY), str(sweep.folder))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def mentioning(model: str, folder: str) -> list[int]:
    """Return the processes whose command names the sweep's folder, or that log to it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode(errors="replace")
            log = str((entry / "fd" / "2").readlink())
        except OSError:
            continue
        if folder in log or (folder in command and model in command):
            found.append(int(entry.name))
    return found


def compare(calm: Sweep, wild: Sweep) -> dict[str, Any]:
    """Return in what two sweeps of one plan differ; all zero and empty is what must come out."""
    (calm_studies, calm_trials), (wild_studies, wild_trials) = calm.read(), wild.read()
    planned, there = Counter(map(plan_key, calm_trials)), Counter(map(plan_key, wild_trials))
    ok = {plan_key(one): one for one in calm_trials if one.kind == "ok"}
    pairs = [(ok[plan_key(one)], one) for one in wild_trials
             if one.kind == "ok" and plan_key(one) in ok]  # fmt: skip
    return {
        "same_study": [one.study for one in calm_studies] == [one.study for one in wild_studies],
        "trials": len(there),
        "missing": len(planned - there),
        "unplanned": len(there - planned),
        "twice": sum(count - 1 for count in there.values()),
        "undisturbed_twice": sum(count - 1 for count in planned.values()),
        "other_tokens": sum(one.token_hash != other.token_hash for one, other in pairs),
        "other_rounds": sum(one.rounds != other.rounds for one, other in pairs),
        "kinds": dict(Counter(one.kind for one in wild_trials)),
        "undisturbed_kinds": dict(Counter(one.kind for one in calm_trials)),
        "processes_left": len(left_behind(wild)),
        "files_left": wild.leftovers(),
    }


def plan_key(record: TrialRecord) -> tuple[object, ...]:
    """Return all that a trial was planned to be: pair, arm, passage, place in its pair.

    A further try of a pair has ids of its own and stands for the pair that was planned.
    """
    names = [one.name for one in fields(TrialRecord)]
    planned = [name for name in names[: names.index("kind")] if name not in ("trial_id", "pair_id")]
    return (record.planned_id, *(getattr(record, name) for name in planned))


def is_same(found: dict[str, Any]) -> bool:
    """Return whether a disturbed sweep ended as the undisturbed one did."""
    counts = ("missing", "unplanned", "twice", "undisturbed_twice", "other_tokens",
              "other_rounds", "processes_left")  # fmt: skip
    return found["same_study"] and not found["files_left"] and not any(map(found.get, counts))


def last_words(sweep: Sweep) -> str:
    text = sweep.log.read_text(encoding="utf-8", errors="replace")
    return text.strip().splitlines()[-1] if text.strip() else "it said nothing"


def experiment(folder: Path, setup: Setup) -> dict[str, Any]:
    """Run both sweeps and return the figures."""
    calm, wild = Sweep(folder / "calm", setup), Sweep(folder / "wild", setup)
    start_s = time.monotonic()
    undisturbed(calm)
    calm_s = time.monotonic() - start_s
    course = disturbed(wild)
    found = compare(calm, wild)
    return {
        "kills": len(course.killed),
        "killed": dict(Counter(course.killed)),
        "drivers": course.drivers,
        "gave_up": course.gave_up,
        "seed": setup.seed,
        "workers": setup.workers,
        "isolation": setup.isolation,
        "store": setup.store,
        "same": is_same(found),
        **found,
        "undisturbed_s": round(calm_s, 1),
        "disturbed_s": round(time.monotonic() - start_s - calm_s, 1),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", default="1")
    parser.add_argument("--isolation", default="process")
    parser.add_argument("--store", choices=("database", "lines"), default="database")
    parser.add_argument("--passages", type=int, default=24)
    parser.add_argument("--out", type=Path, help="add the figures to this JSON file")
    options = parser.parse_args()
    words = {name: getattr(options, name) for name in Setup.__slots__ if hasattr(options, name)}
    with tempfile.TemporaryDirectory(prefix="strata-kill-") as scratch:
        figures = experiment(Path(scratch), Setup(**words))
    if options.out is not None:
        before = json.loads(options.out.read_text()) if options.out.is_file() else []
        write_whole(options.out, (json.dumps([*before, figures], indent=1) + "\n").encode())
    print(json.dumps(figures))
    return 0 if figures["same"] else 1


if __name__ == "__main__":
    sys.exit(main())
