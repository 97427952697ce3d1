"""Test means of log ratios: Student's t over passages and Holm's correction over tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Sample = NDArray[np.float64]


def mean_p_value(sample: Sample, bound: float) -> float:
    """Return the one-sided p value of "the mean is at most `bound`" (Student's t).

    One passage says nothing (1.0); a sample without spread is taken at its word.
    """
    if len(sample) < 2:
        return 1.0
    mean, error = _mean_and_error(sample)
    if error == 0.0:
        return 0.0 if mean > bound else 1.0
    return float(stats.t.sf((mean - bound) / error, len(sample) - 1))


def mean_bounds(sample: Sample, level: float) -> tuple[float, float]:
    """Return the lower and the upper one-sided bound of the mean, each missed at rate `level`."""
    if len(sample) < 2:
        return -np.inf, np.inf
    mean, error = _mean_and_error(sample)
    reach = float(stats.t.isf(level, len(sample) - 1)) * error
    return mean - reach, mean + reach


def share_bounds(shares: Sample, tries: float, level: float) -> tuple[float, float]:
    """Return the one-sided bounds of a mean of shares by cluster, each missed at rate `level`.

    Wilson's score interval with the clusters' own spread in place of the binomial one: an effective
    number of tries, p (1 - p) over the variance of the mean, and Student's quantile on the clusters
    (Korn and Graubard, Survey Methodology, 1998; Dean and Pagano, Journal of Survey Statistics and
    Methodology, 2015). It never leaves 0..1. Clusters that agree better than independent tries
    would are taken for such: `tries` is the most that the effective number can be. One cluster
    says nothing of others.
    """
    if len(shares) < 2:
        return 0.0, 1.0
    mean, effective = _mean_and_tries(shares, tries)
    binomial = max(0.0, mean * (1 - mean))
    square = float(stats.t.isf(level, len(shares) - 1)) ** 2 / effective
    centre, half = mean + square / 2, np.sqrt(square * binomial + square**2 / 4)
    low, high = (centre - half) / (1 + square), (centre + half) / (1 + square)
    return float(np.clip(low, 0.0, mean)), float(np.clip(high, mean, 1.0))


def share_p_value(shares: Sample, tries: float, rate: float) -> float:
    """Return the two-sided p value of "the mean of shares by cluster is `rate`", 0 < rate < 1.

    The test behind `share_bounds`: it rejects at a level where the bounds at half of it, each, do
    not hold the rate. One cluster says nothing.
    """
    if len(shares) < 2:
        return 1.0
    mean, effective = _mean_and_tries(shares, tries)
    score = abs(mean - rate) * np.sqrt(effective / (rate * (1 - rate)))
    return float(2 * stats.t.sf(score, len(shares) - 1))


def holm_steps(p_values: Sequence[float], alpha: float) -> tuple[list[float], list[bool]]:
    """Return for each test the level of its Holm step and whether it is rejected.

    The smallest p value is held against alpha / m, the next against alpha / (m - 1), and so on
    until one fails; those after it are not rejected, and keep the level of the step that failed.
    """
    levels = [alpha] * len(p_values)
    rejected = [False] * len(p_values)
    level, going = alpha, True
    for step, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if going:
            level = alpha / (len(p_values) - step)
            going = p_values[index] <= level
        levels[index], rejected[index] = level, going
    return levels, rejected


def _mean_and_tries(shares: Sample, tries: float) -> tuple[float, float]:
    """Return the mean of shares by cluster and the number of independent tries that it equals."""
    mean, error = _mean_and_error(shares)
    effective = min(tries, max(0.0, mean * (1 - mean)) / error**2) if error else tries
    return mean, max(effective, 1.0)


def _mean_and_error(sample: Sample) -> tuple[float, float]:
    return float(sample.mean()), float(sample.std(ddof=1) / np.sqrt(len(sample)))


def pairs_needed(
    gain_ratio: float, paired_sd: float, *, alpha: float = 0.05, power: float = 0.8
) -> int:
    """Return the passages needed to certify a true gain against zero (one-sided t test)."""
    effect = np.log1p(gain_ratio) / paired_sd
    for count in range(2, 10_000):
        critical = stats.t.ppf(1 - alpha, count - 1)
        if stats.nct.sf(critical, count - 1, effect * np.sqrt(count)) >= power:
            return count
    return 10_000
