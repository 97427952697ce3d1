"""The order in which arms are measured, proposed by Optuna over tier x mode x ring.

The trial store is the only truth: a study of Optuna lives in memory and is rebuilt from what was
measured, so a resumed sweep goes on as if it had never stopped. A plan's grid is small and is
measured whole; the sampler says in which order. (Only this file imports Optuna.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, GPSampler, GridSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from strata.tuner.arms import Arm, ArmGrid
from strata.tuner.proposal import ModelProposal
from strata.tuner.record import TrialRecord

MAX_IDLE_PROPOSALS = 64
"""Proposals of measured arms in a row before the first unmeasured one is taken instead."""


class ArmOrder:
    """Asks Optuna for the next arm of a grid and tells it what an arm's ring gained.

    `measured` maps each arm that the store already holds to its mean log ratio over the default
    ring, None where it has no usable pair; `records` are the trials behind that.
    """

    def __init__(
        self,
        grid: ArmGrid,
        measured: Mapping[Arm, float | None],
        records: Sequence[TrialRecord] = (),
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._grid = grid
        self._proposal = ModelProposal(grid, records) if _asks_model(grid) else None
        self._known = dict(measured)
        self._open = [arm for arm in grid.arms() if arm not in self._known]
        arms = grid.arms()
        self._space: dict[str, Any] = {
            "tier_cells": sorted({arm.tier_cells for arm in arms}),
            "mode": sorted({arm.mode for arm in arms}),
            "ring_cells": sorted({arm.ring_cells for arm in arms}),
        }
        self._distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(choices) for name, choices in self._space.items()
        }
        self._study = optuna.create_study(direction="maximize", sampler=self._sampler())
        self._study.add_trials([self._stored(arm, gain) for arm, gain in self._known.items()])
        self._asked: dict[Arm, optuna.Trial | None] = {}

    def ask(self) -> Arm | None:
        """Return the next arm to measure, None when every arm was asked for.

        Several arms may be asked for before one is told. What is proposed but measured already,
        or equal to a measured ring at that tier, is answered from what is known and asked again;
        what is being measured is passed over.
        """
        free = [arm for arm in self._open if arm not in self._asked]
        if not free:
            return None
        for _ in range(MAX_IDLE_PROPOSALS):
            trial = self._study.ask(self._distributions)
            arm = self._grid.arm(**trial.params)
            if arm not in self._known and arm not in self._asked:
                self._asked[arm] = trial
                return arm
            self._answer(trial, self._known.get(arm))
        self._asked[free[0]] = None
        return free[0]

    def tell(self, arm: Arm, gain: float | None, records: Sequence[TrialRecord] = ()) -> None:
        """Report an arm's mean log ratio, None where every pair of it failed, and its trials."""
        if self._proposal is not None:
            self._proposal.add(records)
        self._known[arm] = gain
        self._open.remove(arm)
        asked = self._asked.pop(arm, None)
        if asked is None:
            self._study.add_trial(self._stored(arm, gain))
        else:
            self._answer(asked, gain)

    def _answer(self, trial: optuna.Trial, gain: float | None) -> None:
        # GridSampler stops the study after its last point, which ask/tell has no loop for: it
        # raises after the trial was stored.
        with suppress(RuntimeError):
            if gain is None:
                self._study.tell(trial, state=TrialState.FAIL)
            else:
                self._study.tell(trial, gain)

    def _stored(self, arm: Arm, gain: float | None) -> FrozenTrial:
        return optuna.trial.create_trial(
            params={"tier_cells": arm.tier_cells, "mode": arm.mode, "ring_cells": arm.ring_cells},
            distributions=self._distributions,
            value=gain,
            state=TrialState.FAIL if gain is None else TrialState.COMPLETE,
        )

    def _sampler(self) -> BaseSampler:
        search = self._grid.plan.search
        if search.sampler == "grid":
            return GridSampler(self._space, seed=search.seed)
        if search.sampler == "random":
            return RandomSampler(seed=search.seed)
        if self._proposal is not None:
            proposal = self._proposal
            return CostModelSampler(
                lambda: proposal.next({**self._known, **dict.fromkeys(self._asked)}),
                self._distributions,
            )
        if search.sampler == "gp":
            return GPSampler(seed=search.seed)
        return TPESampler(seed=search.seed)


class CostModelSampler(BaseSampler):
    """Proposes the arm that `propose` names: the one from which the cost model expects most."""

    def __init__(self, propose: Callable[[], Arm], space: dict[str, BaseDistribution]) -> None:
        self._propose = propose
        self._space = space

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the whole space: an arm is proposed as one."""
        return self._space

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the parameters of the proposed arm."""
        return asdict(self._propose())

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Refuse: no parameter of an arm stands alone."""
        raise AssertionError(f"{param_name} was asked for by itself")


def _asks_model(grid: ArmGrid) -> bool:
    return grid.plan.search.sampler == "cost-model"
