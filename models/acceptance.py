"""Predict the tokens of a round from depth, the drafter's window and the place of a draft.

A draft is accepted only if those before it were, so with conditional rates c_1, c_2, ... a round
yields 1 + c_1 + c_1 c_2 + ... tokens (Leviathan, Kalman and Matias, ICML 2023, with a rate for
each place instead of one for all). Each rate is a ridge regression of the passages' empirical
logits on log depth and log window. Acceptance belongs to the workload and not to the machine:
it varies far more between passages than anything else here, and its interval says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.linear_model import Ridge

from strata.models.features import depth_cells, num_rows
from strata.models.frame import effective_window_cells
from strata.models.physics import Floats


@dataclass(frozen=True, slots=True)
class RateLine:
    """The logit of one place's rate, linear in what a row of `_inputs` holds."""

    intercept: float
    slopes: tuple[float, ...]

    def rate(self, inputs: Floats) -> Floats:
        """Return the rate, between 0 and 1."""
        rate: Floats = expit(self.intercept + inputs @ np.array(self.slopes))
        return rate


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The conditional acceptance rate of each draft position; empty without a drafter."""

    positions: tuple[RateLine, ...]

    @classmethod
    def learn(cls, trials: pd.DataFrame, penalty: float = 1.0) -> Acceptance:
        """Fit to the drafting trials; one with the same passage and window counts once."""
        drafting = trials[(trials["mode"] == "on") & (num_rows(trials) > 1)]
        window = effective_window_cells(drafting)
        once = drafting.assign(_window=window).drop_duplicates(["passage", "spec", "_window"])
        counts = [_chances(a, d) for a, d in zip(once["accepted"], once["drafted"], strict=True)]
        inputs = _inputs(once)
        lines = []
        for place in range(max(map(len, counts), default=0)):
            rows = [i for i, pairs in enumerate(counts) if len(pairs) > place and pairs[place][1]]
            if not rows:
                break
            hits, tries = np.array([counts[i][place] for i in rows], dtype=float).T
            logits = np.log((hits + 0.5) / (tries - hits + 0.5))
            lines.append(_fit_line(inputs[rows], logits, penalty))
        return cls(tuple(lines))

    def tokens_per_round(self, trials: pd.DataFrame) -> Floats:
        """Return the expected tokens of a round; NaN where more is drafted than was measured."""
        inputs, drafts = _inputs(trials), num_rows(trials) - 1
        tokens, alive = np.ones(len(trials)), np.ones(len(trials))
        for place, line in enumerate(self.positions):
            alive = alive * line.rate(inputs)
            tokens += np.where(drafts > place, alive, 0.0)
        return np.where(drafts <= len(self.positions), tokens, np.nan)


def _chances(accepted: object, drafted: object) -> list[tuple[int, int]]:
    """Return (hits, tries) by place: a place is tried where the one before it was accepted."""
    hits, drafts = _counts(accepted), _counts(drafted)
    tries = [min(d, h) for d, h in zip(drafts[1:], hits, strict=False)]
    return list(zip(hits, [*drafts[:1], *tries], strict=False))


def _counts(value: object) -> list[int]:
    return [int(one) for one in value] if isinstance(value, list | tuple | np.ndarray) else []


def _inputs(trials: pd.DataFrame) -> Floats:
    window = effective_window_cells(trials).to_numpy(dtype=float)
    inputs: Floats = np.log2(np.column_stack([depth_cells(trials), np.maximum(window, 1.0)]))
    return inputs


def _fit_line(inputs: Floats, logits: Floats, penalty: float) -> RateLine:
    centre = inputs.mean(axis=0)
    model = Ridge(alpha=penalty).fit(inputs - centre, logits)
    intercept = float(model.intercept_ - model.coef_ @ centre)
    return RateLine(intercept, tuple(float(slope) for slope in model.coef_))
