"""What drafting costs, what it gives, and what a prompt takes: three things measured apart.

Drafting is priced by break-even pairs: a round with refused drafts over a round without any, on one
ring. Time is the machine's and hardly noisy. What a round gives is acceptance, which belongs to the
workload and varies by prompt: a passage is one sample. Drafting pays where a round gives more
accepted drafts than `break_even` asks for; its speed-up is (1 + accepted) / (1 + break-even).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from strata.errors import StoreError
from strata.models.inference import mean_bounds, share_bounds
from strata.tuner.arms import DECODE, ORDER
from strata.tuner.record import TrialRecord
from strata.tuner.store import TrialStore
from strata.tuner.study import StudyRecord

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over passages with its two-sided interval, unbounded where one passage is all."""

    mean: float
    lower: float
    upper: float
    passages: int

    @classmethod
    def of(cls, values: Iterable[float], confidence: float = CONFIDENCE) -> Estimate:
        """Return the mean of some passages' figures and Student's t interval around it."""
        sample = np.array(list(values), dtype=float)
        lower, upper = mean_bounds(sample, (1 - confidence) / 2)
        return cls(
            mean=float(sample.mean()), lower=float(lower), upper=float(upper), passages=len(sample)
        )

    @classmethod
    def of_counts(
        cls, values: Iterable[float], tries: float, most: int = 1, confidence: float = CONFIDENCE
    ) -> Estimate:
        """Return the mean over passages of figures in 0..`most`, and an interval that stays there.

        `tries` is on how many events all of them rest (`share_bounds`).
        """
        sample = np.array(list(values), dtype=float)
        if len(sample) < 2:
            return cls.of(sample, confidence)
        lower, upper = share_bounds(sample / most, tries, (1 - confidence) / 2)
        return cls(
            mean=float(sample.mean()), lower=lower * most, upper=upper * most, passages=len(sample)
        )

    def map(self, rising: Callable[[float], float]) -> Estimate:
        """Return the estimate of a rising function of the figure."""
        ends = [rising(one) for one in (self.mean, self.lower, self.upper)]
        return Estimate(mean=ends[0], lower=ends[1], upper=ends[2], passages=self.passages)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftPrice:
    """What drafts cost on one ring, in a study's own conditions."""

    tier_cells: int
    ring_cells: int
    drafts: int
    window_cells: int | None
    plain_round_s: float
    drafting_round_s: float
    break_even: Estimate
    """Accepted drafts a round at which drafting is as fast as not drafting."""
    accepted: Estimate | None
    """Accepted drafts a round that the study's passages gave, where its trials drafted."""

    @property
    def speed_up(self) -> Estimate | None:
        """Return tok/s with the drafter over tok/s without; the interval is acceptance's alone."""
        if self.accepted is None:
            return None
        cost = 1 + self.break_even.mean
        return self.accepted.map(lambda accepted: (1 + accepted) / cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTime:
    """What the prompt took with one ring, and how it compares with the default one."""

    tier_cells: int
    mode: str
    ring_cells: int
    prefill_s: Estimate
    ttft_ms: Estimate
    over_default: Estimate
    """Mean log ratio of the prompt's speed over the default ring's beside it."""


def draft_prices(store: TrialStore, study: StudyRecord) -> list[DraftPrice]:
    """Return the price of drafts on each (tier, ring) that a study has priced.

    Raises StoreError where it has no break-even pair that ran.
    """
    trials = store.trials(study.study)
    accepted = _accepted(trials)
    prices = []
    for (tier, ring), pairs in sorted(_pairs(trials, "break-even").items()):
        sides = [_sides(pair, lambda run: _round_s(run)) for pair in pairs]
        ratios = [math.log(drafting / plain) for plain, drafting in sides]
        drafting_run = next(run for run in pairs[0] if run.arm == "arm")
        by_passage = accepted.get(tier)
        prices.append(
            DraftPrice(
                tier_cells=tier,
                ring_cells=ring,
                drafts=drafting_run.spec,
                window_cells=drafting_run.mtp_window_cells,
                plain_round_s=float(np.mean([plain for plain, _ in sides])),
                drafting_round_s=float(np.mean([drafting for _, drafting in sides])),
                break_even=Estimate.of(ratios).map(math.expm1),
                accepted=Estimate.of_counts(by_passage.values(), math.inf, drafting_run.spec)
                if by_passage
                else None,
            )
        )
    if not prices:
        raise StoreError(
            f"study {study.study} ({study.name}) has priced no draft; put break-even into "
            "measure.purposes of its plan"
        )
    return prices


def prompt_times(store: TrialStore, study: StudyRecord) -> list[PromptTime]:
    """Return what prompts took on each (tier, mode, ring); none where no pair was for that."""
    found = []
    for (tier, ring), pairs in sorted(_pairs(store.trials(study.study), "prefill").items()):
        for mode in ("off", "on"):
            mine = [pair for pair in pairs if pair[0].mode == mode]
            if not mine:
                continue
            arms = [[run for run in pair if run.arm == "arm"] for pair in mine]
            sides = [_sides(pair, lambda run: run.prefill_s or math.nan) for pair in mine]
            found.append(
                PromptTime(
                    tier_cells=tier,
                    mode=mode,
                    ring_cells=ring,
                    prefill_s=Estimate.of(_mean(run.prefill_s for run in runs) for runs in arms),
                    ttft_ms=Estimate.of(_mean(run.ttft_ms for run in runs) for runs in arms),
                    over_default=Estimate.of(math.log(default / arm) for default, arm in sides),
                )
            )
    return found


def _pairs(
    trials: Sequence[TrialRecord], purpose: str
) -> dict[tuple[int, int], list[list[TrialRecord]]]:
    """Return the whole pairs of one purpose whose runs are all ok, by (tier, ring)."""
    by_pair: dict[str, list[TrialRecord]] = defaultdict(list)
    for run in trials:
        if run.purpose == purpose:
            by_pair[run.pair_id].append(run)
    found: dict[tuple[int, int], list[list[TrialRecord]]] = defaultdict(list)
    for runs in by_pair.values():
        if len(runs) == len(ORDER) and all(run.kind == "ok" for run in runs):
            arm = next(run for run in runs if run.arm == "arm")
            found[arm.tier_cells, arm.ring_cells].append(runs)
    return found


def _sides(
    pair: Sequence[TrialRecord], figure: Callable[[TrialRecord], float]
) -> tuple[float, float]:
    """Return the geometric means of a figure over both sides of a pair, the default's first."""
    logs = {arm: [math.log(figure(run)) for run in pair if run.arm == arm] for arm in ORDER}
    default, arm = (math.exp(sum(logs[one]) / len(logs[one])) for one in ("default", "arm"))
    return default, arm


def _accepted(trials: Sequence[TrialRecord]) -> dict[int, dict[str, float]]:
    """Return the accepted drafts a round of each passage, by tier; rings do not change them."""
    found: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in trials:
        drafting = run.purpose == DECODE and run.mode == "on" and run.kind == "ok"
        if drafting and run.tokens_per_round is not None:
            found[run.tier_cells][run.passage].append(run.tokens_per_round - 1)
    return {
        tier: {name: sum(values) / len(values) for name, values in passages.items()}
        for tier, passages in found.items()
    }


def _round_s(run: TrialRecord) -> float:
    return 1 / run.rounds_per_s if run.rounds_per_s else math.nan


def _mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else math.nan
