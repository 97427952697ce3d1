"""Write a study as Optuna keeps one, in SQLite, so that optuna-dashboard can open it.

One trial of Optuna is one arm; its value is the mean gain in rounds/s over the default ring, as a
ratio minus one. What the arm measured is in the trial's user attributes, and what the study is in
the study's. It is a copy to look at: nothing here is read back.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from strata.errors import StoreError
from strata.tuner.arms import DECODE, Arm
from strata.tuner.record import TrialRecord
from strata.tuner.store import TrialStore
from strata.tuner.study import IDENTITY, StudyRecord
from strata.tuner.sweep import mean_gain, of_pairs

MEANS = ("rounds_per_s", "tok_s", "tokens_per_round", "expert_slots", "tpot_p50_ms", "tpot_p99_ms")


def export_optuna(store: TrialStore, key: str, path: Path) -> tuple[str, int]:
    """Write the study that `key` names to `path`; return Optuna's name of it and its trials.

    The file appears whole or not at all. Raises StoreError where there is one, or none can be.
    """
    study = store.study(key)
    if path.exists():
        raise StoreError(f"{path} is there already; name a file that is not")
    trials = _arms(store, study)
    name = f"{study.name}-{study.study}"
    scratch: Path | None = None
    try:
        handle, text = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".db", dir=path.parent)
        os.close(handle)
        scratch = Path(text)
        _write(scratch, name, study, trials)
        scratch.chmod(0o644)
        scratch.replace(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        if scratch is not None:
            scratch.unlink(missing_ok=True)
    return name, len(trials)


def _write(path: Path, name: str, study: StudyRecord, trials: Sequence[FrozenTrial]) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.RDBStorage(f"sqlite:///{path.resolve()}")
    try:
        written = optuna.create_study(storage=storage, study_name=name, direction="maximize")
        written.set_user_attr("value", "mean gain in rounds/s over the default ring, minus one")
        for fact in (*IDENTITY, "default_ring_cells", "created_at", "plan"):
            written.set_user_attr(fact, getattr(study, fact))
        written.add_trials(trials)
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _arms(store: TrialStore, study: StudyRecord) -> list[FrozenTrial]:
    """Return a trial for each arm that has run, in the order in which they did."""
    records, grid = store.trials(study.study), study.grid
    arms = grid.arms()
    space: dict[str, BaseDistribution] = {
        "tier_cells": CategoricalDistribution(sorted({arm.tier_cells for arm in arms})),
        "mode": CategoricalDistribution(sorted({arm.mode for arm in arms})),
        "ring_cells": CategoricalDistribution(sorted({arm.ring_cells for arm in arms})),
    }
    found = []
    for arm in arms:
        pairs = [
            *grid.pairs(arm, study=study.study), *grid.confirming(arm, study=study.study)
        ]  # fmt: skip
        mine = [run for run in of_pairs(records, pairs) if run.purpose == DECODE]
        if mine:
            found.append(_trial(arm, mine, mean_gain(mine, pairs), space))
    return sorted(found, key=lambda trial: trial.datetime_start or datetime.min.replace(tzinfo=UTC))


def _trial(
    arm: Arm,
    runs: Sequence[TrialRecord],
    gain: float | None,
    space: dict[str, BaseDistribution],
) -> FrozenTrial:
    trial = optuna.trial.create_trial(
        params={"tier_cells": arm.tier_cells, "mode": arm.mode, "ring_cells": arm.ring_cells},
        distributions=space,
        value=None if gain is None else math.expm1(gain),
        state=TrialState.FAIL if gain is None else TrialState.COMPLETE,
        user_attrs=_attributes(runs),
    )
    times = sorted(datetime.fromisoformat(run.started_at) for run in runs)
    # Optuna keeps UTC and takes a time without a zone for local time (since 5.0).
    trial.datetime_start, trial.datetime_complete = times[0], times[-1]
    return trial


def _attributes(runs: Sequence[TrialRecord]) -> dict[str, Any]:
    """Return what the arm's own runs measured: means over passages, counts, kinds."""
    own = [run for run in runs if run.arm == "arm"]
    usable = [run for run in own if run.kind == "ok"]
    facts: dict[str, Any] = {
        "passages": len({run.passage for run in usable}),
        "pairs": len({run.pair_id for run in runs}),
        "pool_cells": own[0].pool_cells if own else None,
    }
    for name in MEANS:
        values = [value for run in usable if (value := getattr(run, name)) is not None]
        if values:
            facts[name] = sum(values) / len(values)
    lookups = sum(run.kv_lookups or 0 for run in usable)
    if lookups:
        facts["hit_ratio"] = sum(run.kv_hits or 0 for run in usable) / lookups
    failed = Counter(run.kind for run in runs if run.kind != "ok")
    return facts | ({"failed": dict(failed)} if failed else {})
