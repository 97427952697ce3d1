"""Run a plan from start to end: describe the engine, name the study, sweep it into a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import cast

from strata.errors import StoreError, UsageError
from strata.tuner.arms import lay_grid
from strata.tuner.cluster import Cluster
from strata.tuner.crowd import most_pairs, most_workers
from strata.tuner.environment import EngineFacts
from strata.tuner.fields import is_name, shown
from strata.tuner.plan import Plan
from strata.tuner.pool import Pool, Worker
from strata.tuner.record import TrialRecord
from strata.tuner.runner import ProcessRunner, server_command
from strata.tuner.store import TrialStore
from strata.tuner.study import IDENTITY, StudyRecord, create_study
from strata.tuner.sweep import Progress, count_pairs, due_retries, refuse_repeat, sweep
from strata.tuner.worker import ISOLATIONS, Isolation

MAX_WORKERS = 1_024
COUNTED = (("", ""), ("ray", ":"))
STUDY_FOLDER = "{name}-{study}"
TABLE_NAME = "ring-policy.json"
REPORT_NAME = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Who measures: so many workers on this machine, or the nodes of a Ray cluster."""

    count: int | None = 1
    """None, for Ray alone, is as many as the cluster has GPUs, or nodes where it has none."""
    ray: bool = False
    isolation: Isolation = "process"

    @classmethod
    def parse(cls, workers: str, isolation: str) -> Crew:
        """Read ``N``, ``ray`` or ``ray:N`` and an isolation; raise UsageError for anything else."""
        if isolation not in ISOLATIONS:
            raise UsageError(f"--isolation: {isolation!r} is none of {', '.join(ISOLATIONS)}")
        word, colon, number = workers.rpartition(":")
        if workers == "ray":
            return cls(count=None, ray=True, isolation=cast(Isolation, isolation))
        if number.isdecimal() and 1 <= int(number) <= MAX_WORKERS and (word, colon) in COUNTED:
            ray = word == "ray"
            return cls(count=int(number), ray=ray, isolation=cast(Isolation, isolation))
        raise UsageError(
            f"--workers: {workers!r} is not 1 to {MAX_WORKERS}, ray, or ray and a number: ray:2"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A study that is about to be measured."""

    study: StudyRecord
    done_pairs: int
    total_pairs: int
    stored: tuple[TrialRecord, ...] = ()
    """The trials that are there already."""
    not_resumed: str
    """Why a stored study of the same plan is not gone on with; empty where there is none."""


def run_plan(
    plan: Plan,
    store: TrialStore,
    *,
    device: str,
    crew: Crew,
    resume: bool,
    retry: bool = False,
    beside: Sequence[Plan] = (),
    where: str,
    log: Path,
    on_start: Callable[[Started], None],
    on_pair: Callable[[Progress], None],
    on_note: Callable[[str], None],
) -> StudyRecord:
    """Measure what `store` lacks of a plan and return the study; the pairs are stored one by one.

    `retry` measures the pairs that failed again, too. `beside` are the plans of all the studies
    that follow each other, of which none begins where the engine refuses an arm of any. `where` is
    the store's name for messages, `log` takes what the trial processes write. Raises StrataError
    for what cannot be run, KeyboardInterrupt passes through with every child ended.
    """
    with ExitStack() as stack:
        workers = _workers(crew, plan, device=device, log=log, stack=stack)
        pool = stack.enter_context(
            Pool(
                workers,
                passages=plan.passage_names(),
                timeout_s=plan.measure.timeout_s,
                plans=[one.canonical() for one in beside or (plan,)],
            )
        )
        facts = pool.start()
        study = new_study(plan, facts)
        refuse_repeat(study, store, resume=resume or retry, where=where)
        store.add_study(study)
        done, total = count_pairs(study, store)
        other = "" if done else _not_resumed(study, store)
        if retry:
            done -= len(due_retries(store.every_trial(study.study)))
        on_start(
            Started(
                study=study,
                done_pairs=done,
                total_pairs=total,
                stored=tuple(store.trials(study.study)),
                not_resumed=other,
            )
        )
        if not crew.ray:
            asked = crew.count or 1
            count, reason = most_workers(asked, pairs=total - done, facts=facts)
            if reason:
                on_note(f"warning: --workers {asked}: {count} measure, {reason}")
            pool.add(_workers_here(crew, plan, range(1, count), device=device, log=log))
        sweep(study, store, pool, retry=retry, on_pair=on_pair, on_note=on_note)
    return study


def _workers(
    crew: Crew, plan: Plan, *, device: str, log: Path, stack: ExitStack
) -> Sequence[Worker]:
    """Return the workers that a crew starts with; `stack` leaves the cluster after them.

    Of a crew on this machine that is the first one, which tells how many more there can be.
    """
    if crew.ray:
        command = partial(server_command, model=plan.model, device=device, isolation=crew.isolation)
        cluster = Cluster()
        stack.callback(cluster.close)
        places = cluster.places(device, crew.count)[: most_pairs(plan)]
        return [cluster.worker(one, command) for one in places]
    if crew.count != 1 and ":" in device:
        raise UsageError(
            f"--device {device} is one GPU, and {crew.count} workers need one each; use cuda"
        )
    return _workers_here(crew, plan, range(1), device=device, log=log)


def _workers_here(
    crew: Crew, plan: Plan, numbers: Iterable[int], *, device: str, log: Path
) -> list[ProcessRunner]:
    """Return the workers of this machine with some numbers, not started yet."""
    command = server_command(model=plan.model, device=device, isolation=crew.isolation)
    return [ProcessRunner([*command, "--number", str(number)], log=log) for number in numbers]


def _not_resumed(study: StudyRecord, store: TrialStore) -> str:
    """Name what keeps the newest stored study of the same plan from being this one."""
    alike = [
        one
        for one in store.studies()
        if one.plan_sha256 == study.plan_sha256 and one.study != study.study
    ]
    if not alike:
        return ""
    last = alike[-1]
    differing = [name for name in IDENTITY if getattr(last, name) != getattr(study, name)]
    return f"study {last.study} of this plan differs in {', '.join(differing)}, so this is another"


def new_study(plan: Plan, facts: EngineFacts) -> StudyRecord:
    """Return the study that a plan is on an engine; raise UsageError where it cannot be one."""
    grid = lay_grid(
        plan,
        device_default_cells=facts.default_ring_cells,
        max_positions=facts.max_positions,
        has_mtp=facts.has_mtp,
    )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return create_study(grid, facts, created_at=now)


def study_folder(out: Path, study: StudyRecord) -> Path:
    """Return the folder for what a study leaves behind; raise StoreError for a name that is none.

    A name may come from a file that someone else wrote, and a path must not follow it.
    """
    if not is_name(study.name) or not is_name(study.study):
        raise StoreError(f"study {shown(study.study)} has no name: {shown(study.name)}")
    return out / STUDY_FOLDER.format(name=study.name, study=study.study)
