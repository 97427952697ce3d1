"""Two Ray workers on this machine: they share one study, and one of them is killed in mid-trial."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import fake_trial
import pytest
from tuner_samples import SMALL_PLAN, all_pairs
from typer.testing import CliRunner

from strata.cli.tune import app
from strata.errors import StrataError, UsageError
from strata.tuner.arms import ArmGrid
from strata.tuner.cluster import Cluster, RayWorker
from strata.tuner.conclude import NOTHING_TO_USE
from strata.tuner.plan import parse_plan
from strata.tuner.pool import Pool, WorkerLostError
from strata.tuner.record import TrialRecord
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord, create_study
from strata.tuner.sweep import sweep

TINY = Path(__file__).parent.parent / "data" / "tiny"
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'strata[ray]'")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(address="local", num_cpus=2, **quiet)
    yield Cluster()
    ray.shutdown()


def fake_workers(cluster: Cluster, pids: Path, count: int, delay_s: float) -> list[RayWorker]:
    script = str(Path(__file__).with_name("fake_trial.py"))
    words = (sys.executable, script, "--pids", str(pids), "--delay", str(delay_s))
    return [cluster.worker(one, partial(tuple, words)) for one in cluster.places("cpu", count)]


def test_one_of_two_workers_is_killed_in_mid_trial(
    cluster: Cluster, study: StudyRecord, tmp_path: Path
) -> None:
    pids, notes = tmp_path / "pids", list[str]()
    workers = fake_workers(cluster, pids, 2, delay_s=0.05)
    killer = threading.Thread(target=kill_an_actor_in_mid_trial, args=(pids,))
    with (
        DuckStore(tmp_path / "t.duckdb") as store,
        Pool(workers, passages=(), timeout_s=60) as pool,
    ):
        store.add_study(study)
        pool.start()
        killer.start()
        sweep(study, store, pool, on_note=notes.append)
        killer.join()
        records = store.trials(study.study)
        tries = store.tries(study.study)
    assert [note.partition(" (")[0] for note in notes] in (
        ["worker 0 was lost"],
        ["worker 1 was lost"],
    )
    assert_whole(study, records)
    assert {one.kind for one in records} == {"ok"}
    assert sum((noted["lost"] for noted in tries.values()), 0) == 1
    assert sum((noted["begun"] for noted in tries.values()), 0) == len(all_pairs(study)) + 1
    servers = {one.pair_id: one.conditions["server"] for one in records if one.conditions}
    for one in records:
        assert one.conditions is not None
        assert one.conditions["server"] == servers[one.pair_id]  # a pair stays where it began
    assert len(set(servers.values())) >= 2
    assert not any(is_alive(int(pid)) for pid in set(pids.read_text().split()))


def test_a_pair_that_takes_its_workers_with_it_is_given_up(
    cluster: Cluster, tmp_path: Path
) -> None:
    """It ends every actor that runs it: it is a crash after three, and the others are measured."""
    text = SMALL_PLAN.replace("tiers = [32, 64]", "tiers = [32]\nmodes = ['off']")
    text = text.replace("fresh = [1, 2]", f"fresh = [1, {fake_trial.KILL_PARENT}]")
    text = text.replace("rings = [32, 64, 128]", "rings = [32, 64]")
    grid = ArmGrid(parse_plan(text, origin="small.toml"), 64)
    study = create_study(grid, fake_trial.FACTS, created_at="2026-01-02T03:04:05+00:00")
    notes: list[str] = []
    with (
        DuckStore(tmp_path / "t.duckdb") as store,
        Pool(fake_workers(cluster, tmp_path / "pids", 2, 0.0), passages=(), timeout_s=60) as pool,
    ):
        store.add_study(study)
        pool.start()
        sweep(study, store, pool, on_note=notes.append)
        records = store.trials(study.study)
    assert_whole(study, records)
    assert len(notes) == 2  # the third loss is the result
    failed = [one for one in records if one.passage.endswith(f":{fake_trial.KILL_PARENT}")]
    assert {(one.kind, one.rounds_per_s) for one in failed} == {("crash", None)}
    assert all(one.message.startswith("its worker was lost 3 times") for one in failed)
    assert {one.kind for one in records if one not in failed} == {"ok"}


def test_a_lost_worker_says_so_and_starts_again(
    cluster: Cluster, study: StudyRecord, tmp_path: Path
) -> None:
    (worker,) = fake_workers(cluster, tmp_path / "pids", 1, 0.0)
    pair = replace(all_pairs(study)[0], arm_ring_cells=32, passage=f"32:{fake_trial.KILL_PARENT}")
    facts = worker.describe([])
    with pytest.raises(WorkerLostError, match="actor died"):
        worker.run_pair(pair, facts, timeout_s=30)
    assert worker.describe([]) == facts
    assert worker.run_pair(replace(pair, passage="32:0"), facts, timeout_s=30)[3].kind == "ok"
    worker.close()


def test_a_node_that_cannot_hold_a_worker_says_why(cluster: Cluster) -> None:
    (place,) = cluster.places("cpu", 1)
    worker = cluster.worker(place, partial(int, "no command"))
    with pytest.raises(StrataError, match=r"Ray could not start it: .*ValueError: invalid literal"):
        worker.describe([])
    worker.close()
    silent = cluster.worker(place, partial(tuple, (sys.executable, "-c", "raise SystemExit('no')")))
    with pytest.raises(StrataError, match=r"ended at its start: .* no \(on "):
        silent.describe([])
    silent.close()


def test_the_command_measures_the_same_set_as_on_one_machine(
    cluster: Cluster, tmp_path: Path
) -> None:
    """`strata tune --workers ray:2` on the real engine, and nothing is left to do without Ray."""
    plan = tmp_path / "small.toml"
    plan.write_text(SMALL_PLAN.replace("tiers = [32, 64]", "tiers = [32]\nmodes = ['off']"))
    words = [str(plan), "--model", str(TINY), "--out", str(tmp_path / "runs")]
    done = CliRunner().invoke(app, [*words, "--workers", "ray:2"])
    assert done.exit_code == 0, done.stderr
    with DuckStore(tmp_path / "runs" / "strata.duckdb") as store:
        study = store.study("small")
        assert_whole(study, store.trials(study.study))
    assert "use it: strata generate" in done.stdout or NOTHING_TO_USE in done.stdout


def test_places_are_what_the_cluster_has(cluster: Cluster) -> None:
    (place,) = cluster.places("auto", None)  # one node, which its worker has to itself
    assert (place.gpus, place.cpus) == (0, 2)
    assert place.node is not None
    assert [one.cpus for one in cluster.places("cpu", 2)] == [1, 1]
    for device, count, message in (
        ("cuda", None, "the Ray cluster has no GPU"),
        ("cuda:1", None, "gives each worker its own"),
        ("cpu", 3, "--workers ray:3: the Ray cluster has 2 CPUs"),
    ):
        with pytest.raises(UsageError, match=message):
            cluster.places(device, count)


def assert_whole(study: StudyRecord, records: list[TrialRecord]) -> None:
    """Nothing twice, nothing lost."""
    planned = [pair.trial_id(position) for pair in all_pairs(study) for position in range(4)]
    assert Counter(one.trial_id for one in records) == Counter(planned)


def kill_an_actor_in_mid_trial(pids: Path) -> None:
    """End the actor above the server above a fork that has a session open, after some pairs."""
    while True:
        noted = list(dict.fromkeys(map(int, pids.read_text().split()))) if pids.exists() else []
        for fork in reversed(noted[6:]):
            server = parent_of(fork)
            if server in noted and (actor := parent_of(server)) is not None:
                os.kill(actor, signal.SIGKILL)
                return
        time.sleep(0.01)


def parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
