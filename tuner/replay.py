"""Run a sampler against a grid that was measured: what it would have found, and how soon.

No trial runs. An arm's recorded mean log ratio over the default ring is taken for the truth. The
regret of a (tier, mode) is what the best ring measured so far (the default ring, before any) lacks
to the best ring of the grid; the mean over all of them is scored, for every sampler alike. The
unit is arms. The default ring itself and what the memory did not hold count nothing: the first is a
control that finds no ring and is measured in any order, the second takes no time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strata.errors import StoreError
from strata.tuner.arms import Arm, ArmGrid
from strata.tuner.record import TrialRecord
from strata.tuner.sampler import ArmOrder
from strata.tuner.store import TrialStore
from strata.tuner.study import StudyRecord
from strata.tuner.sweep import count_pairs, mean_gain, of_pairs

REPLAYED = ("random", "tpe", "cost-model")
"""The samplers that are replayed where none is named."""
BAND = (10, 90)
"""The percentiles over seeds between which a band is drawn."""
Curve = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RecordedGrid:
    """A whole measured grid: for each arm its mean log ratio, None where it failed, and trials."""

    grid: ArmGrid
    gains: Mapping[Arm, float | None]
    records: Mapping[Arm, Sequence[TrialRecord]]

    @classmethod
    def load(cls, store: TrialStore, study: StudyRecord) -> RecordedGrid:
        """Return the grid of a stored study; raise StoreError where it is not whole."""
        done, total = count_pairs(study, store)
        if done < total:
            raise StoreError(
                f"study {study.study} ({study.name}) has {done} of {total} pairs, and a replay "
                "needs them all; `strata tune PLAN --resume` measures the rest"
            )
        every, grid, key = store.trials(study.study), study.grid, study.study
        pairs = {arm: list(grid.pairs(arm, study=key)) for arm in grid.arms()}
        records = {arm: of_pairs(every, mine) for arm, mine in pairs.items()}
        gains = {arm: mean_gain(records[arm], mine) for arm, mine in pairs.items()}
        return cls(grid, gains, records)

    @property
    def rivals(self) -> frozenset[Arm]:
        """Return the arms that count: those that could run and are not the default ring."""
        return frozenset(
            arm
            for arm in self.gains
            if arm.ring_cells != self.grid.default_ring_cells
            and not any(run.kind == "out of memory" for run in self.records[arm])
        )

    def best(self, measured: Sequence[Arm]) -> float:
        """Return the mean over (tier, mode) of the best log ratio among some arms, and 0."""
        found = {(arm.tier_cells, arm.mode): 0.0 for arm in self.gains}
        for arm in measured:
            gain = self.gains[arm]
            if gain is not None and arm.ring_cells != self.grid.default_ring_cells:
                place = (arm.tier_cells, arm.mode)
                found[place] = max(found[place], gain)
        return math.fsum(found.values()) / len(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What one sampler found, over seeds; curves are [seeds, arms + 1], from no arm onwards.

    Arms are those of `RecordedGrid.rivals`.
    """

    sampler: str
    num_arms: int
    found: Curve
    """Mean log ratio over (tier, mode) of the best ring measured so far."""
    best: float
    """The same of the best rings of the whole grid."""

    @property
    def regret_ratio(self) -> Curve:
        """Return the share of the best rings' speed that is still lost."""
        lost: Curve = 0.0 - np.expm1(self.found - self.best)
        return lost

    def arms_to(self, regret_ratio: float) -> list[float]:
        """Return for each seed the arms after which its regret is that small, infinite if none."""
        reached = self.regret_ratio <= regret_ratio
        return [float(np.argmax(row)) if row.any() else math.inf for row in reached]

    def arms_to_band(self, regret_ratio: float) -> tuple[float, float, float]:
        """Return BAND's lower end, median and upper end of `arms_to`; each is one of its values."""
        counts = sorted(self.arms_to(regret_ratio))
        at = [math.ceil(len(counts) * share / 100) - 1 for share in (BAND[0], 50, BAND[1])]
        return counts[at[0]], counts[at[1]], counts[at[2]]

    def regret_after(self, share: float) -> tuple[float, float, float] | None:
        """Return BAND's lower end, median and upper end of the regret after a share of the grid.

        None where the replay was stopped before.
        """
        arms = round(share * self.num_arms)
        if arms >= self.found.shape[1]:
            return None
        low, middle, high = np.percentile(self.regret_ratio[:, arms], (BAND[0], 50, BAND[1]))
        return float(low), float(middle), float(high)


def replay(
    recorded: RecordedGrid, sampler: str, *, seeds: Sequence[int], max_arms: int | None = None
) -> Replay:
    """Let a sampler ask for arms of a recorded grid, once a seed, up to `max_arms` of them."""
    every = len(recorded.rivals)
    num_arms = every if max_arms is None else min(max_arms, every)
    curves = [_curve(recorded, sampler, seed, num_arms) for seed in seeds]
    return Replay(
        sampler=sampler,
        num_arms=every,
        found=np.array(curves),
        best=recorded.best(list(recorded.gains)),
    )


def _curve(recorded: RecordedGrid, sampler: str, seed: int, num_arms: int) -> list[float]:
    plan = recorded.grid.plan.with_sampler(sampler, seed=seed)
    grid = ArmGrid(plan, recorded.grid.default_ring_cells)
    order, asked, rivals = ArmOrder(grid, {}), list[Arm](), recorded.rivals
    curve, best = [recorded.best(asked)], recorded.best(list(recorded.gains))
    while len(curve) <= num_arms and curve[-1] < best and (arm := order.ask()) is not None:
        order.tell(arm, recorded.gains[arm], recorded.records[arm])
        asked.append(arm)
        if arm in rivals:
            curve.append(recorded.best(asked))
    return curve + [best] * (num_arms + 1 - len(curve))  # nothing better is left to find
