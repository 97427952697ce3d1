"""Choose the arm to measure next: the one from which the largest drop in regret is expected.

What a ring gains over the default is believed to be what the fitted round time says, plus what
the model has wrong there: a Gaussian process over depth, pool and mode whose size is learned from
the arms already measured, and which is zero where the ring is the default. The regret of a (tier,
mode) is what its best measured ring lacks to its best ring; measuring an arm lowers it by as much
as the arm beats the best measured one, so the expected drop is the expected improvement (Jones,
Schonlau and Welch, Journal of Global Optimization, 1998). Until the model can be fitted, arms are
taken far from each other in depth and mode, an octave above or below the default ring: the nearest
ring says little, and the last one is seldom the best.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.spatial.distance import cdist
from scipy.special import ndtr

from strata.models.cost_model import ASKED
from strata.models.features import pool_cells
from strata.models.latency import RoundTime
from strata.models.physics import Floats

ARM_COLUMNS = (*ASKED, "tier_cells", "default_ring_cells", "gain")
"""What is known of an arm: what a session would be asked, and its mean log ratio once measured."""

PRIOR_LOG_SD = 0.02
"""How wrong a predicted gain is before anything says so: half of the 4 % by which physics-shaped
models miss a round's time at a left-out depth (published H200 decode figures), because two rings at
one depth share most of that. It counts as PRIOR_WEIGHT measured arms."""
PRIOR_WEIGHT = 4.0
NOISE_LOG_SD = 0.005
"""The noise of an arm's mean gain: windows of 0.8 s on an H200 differ by 0.47 %."""
OCTAVES = 1.0
"""Over how many doublings of depth or pool an error of the model stays alike."""
OTHER_MODE = 0.5
"""How alike the model's errors are with the drafter off and on."""
MIN_TIERS, MIN_POOLS = 2, 3
"""What must be measured, where the grid has as many, before the model is asked; and every mode. A
cell, a page and an expert cost what they cost with the drafter off and on."""
FIRST_OCTAVES = 1.0
"""How far from the default ring the first arms lie, where the grid has such rings."""
MAX_BOUNDS = 8
"""Rounds in which sessions that kept every expert are added to the fit of slots."""

Marks = NDArray[np.bool_]


def propose(trials: pd.DataFrame, arms: pd.DataFrame, measured: Marks, *, seed: int) -> int:
    """Return the row of `arms` (ARM_COLUMNS) to measure next, among those not in `measured`.

    `trials` are the finished trials so far; `measured` [len(arms)] is true where an arm was
    measured, whether or not it has a gain. The same trials and seed give the same arm.
    """
    open_arms = np.flatnonzero(~measured)
    if can_fit(trials, arms):
        drops = expected_drops(trials, arms)[open_arms]
    else:
        drops = _distances(arms, measured, seed)[open_arms]
    return int(open_arms[np.argmax(drops)])


def can_fit(trials: pd.DataFrame, arms: pd.DataFrame) -> bool:
    """Return whether each mode of the grid was measured, and enough depths and pools in all."""
    if not set(arms["mode"]) <= set(trials["mode"]):
        return False
    if trials["tier_cells"].nunique() < min(MIN_TIERS, arms["tier_cells"].nunique()):
        return False
    return _num_pools(trials) >= min(MIN_POOLS, _num_pools(arms))


def expected_drops(trials: pd.DataFrame, arms: pd.DataFrame) -> Floats:
    """Return by how much measuring each arm is expected to lower its (tier, mode)'s regret.

    In log speed; zero for the default ring, whose gain over itself is known.
    """
    mean, sd = believed_gains(trials, arms)
    gain = pd.Series(_known_gains(arms), index=arms.index).fillna(-np.inf)
    best = gain.groupby([arms["tier_cells"], arms["mode"]]).transform("max").to_numpy(dtype=float)
    incumbent = np.maximum(best, 0.0)
    ahead = mean - incumbent
    z = np.divide(ahead, sd, out=np.zeros_like(sd), where=sd > 0)
    density = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    drops: Floats = np.where(sd > 0, ahead * ndtr(z) + sd * density, np.maximum(ahead, 0.0))
    return drops


def believed_gains(trials: pd.DataFrame, arms: pd.DataFrame) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of each arm's log ratio over the default ring."""
    asked = arms.assign(expert_slots=_slots(trials, arms))
    default = arms.assign(ring_cells=arms["default_ring_cells"])
    default = default.assign(expert_slots=_slots(trials, default))
    part = RoundTime.learn(trials)
    predicted = _log_ratio(part.seconds(default), part.seconds(asked))
    is_default, gain = _is_default(arms), _known_gains(arms)
    known = np.isfinite(gain)
    wrong = gain[known] - predicted[known]
    freedom = np.sum(known & ~is_default) - np.count_nonzero(part.regression.coef_)
    weight = PRIOR_WEIGHT + max(0, int(freedom))
    variance = (PRIOR_WEIGHT * PRIOR_LOG_SD**2 + float(wrong @ wrong)) / weight
    kernel = variance * _likeness(arms)
    noise = np.where(is_default[known], 1e-4 * NOISE_LOG_SD, NOISE_LOG_SD) ** 2
    inner = kernel[np.ix_(known, known)] + np.diag(noise)
    solved = np.linalg.solve(inner, kernel[known])  # [known, arms]
    left = np.maximum(variance - np.sum(kernel[known] * solved, axis=0), 0.0)
    left[is_default] = 0.0
    return predicted + wrong @ solved, np.sqrt(left)


def _is_default(arms: pd.DataFrame) -> Marks:
    found: Marks = (arms["ring_cells"] == arms["default_ring_cells"]).to_numpy(dtype=bool)
    return found


def _known_gains(arms: pd.DataFrame) -> Floats:
    """Return each arm's gain, NaN where it has none yet; the default ring gains nothing."""
    gains: Floats = np.where(_is_default(arms), 0.0, arms["gain"].to_numpy(dtype=float))
    return gains


def _likeness(arms: pd.DataFrame) -> Floats:
    """Return how alike the model's errors at two arms are, 0 to 1 [arms, arms]."""
    place = np.log2(np.column_stack([arms["tier_cells"].to_numpy(dtype=float), pool_cells(arms)]))
    near = np.exp(-0.5 * cdist(place, place, "sqeuclidean") / OCTAVES**2)
    mode = arms["mode"].to_numpy()
    alike: Floats = near * np.where(mode[:, None] == mode[None, :], 1.0, OTHER_MODE)
    return alike


def _log_ratio(default_s: Floats, arm_s: Floats) -> Floats:
    """Return the log of one time over another, zero where few trials leave a time without price."""
    priced = (default_s > 0) & (arm_s > 0)
    ratio: Floats = np.log(np.where(priced, default_s, 1.0) / np.where(priced, arm_s, 1.0))
    return ratio


def _num_pools(table: pd.DataFrame) -> int:
    return len(np.unique(pool_cells(table)))


def _slots(trials: pd.DataFrame, arms: pd.DataFrame) -> Floats:
    """Return the expert slots that each arm would leave, by the sessions measured so far.

    Under one budget every cell of pool and of context takes its share of a slot, and the drafter
    some; what the budget leaves over comes first. So the slots that lack are linear where any
    do, with shares that are not negative. A guess that only orders measurements; what fits is
    for the engine's ledger to say.
    """
    found = pd.to_numeric(trials["expert_slots"]).to_numpy(dtype=float)
    known = np.isfinite(found)
    if not known.any():
        return np.full(len(arms), np.nan)
    every = found[known].max()
    rows = np.column_stack([_takers(trials[known]), every - found[known]])
    takers, lacking = np.split(np.unique(rows, axis=0), [-1], axis=1)
    used = lacking[:, 0] > 0
    shares = np.zeros(takers.shape[1])
    for _ in range(MAX_BOUNDS):
        if used.any():
            shares, _ = nnls(takers[used], lacking[used, 0])
        too_few = ~used & (takers @ shares > 0)
        if not too_few.any():
            break
        used |= too_few
    slots: Floats = np.clip(every - _takers(arms) @ shares, 0, every)
    return slots


def _takers(table: pd.DataFrame) -> Floats:
    """Return what takes memory from experts [n, 4]: pool, context, drafter; less what is over."""
    context = pd.to_numeric(table["context_cells"]).to_numpy(dtype=float)
    drafting = (table["mode"] == "on").to_numpy(dtype=float)
    return np.column_stack([pool_cells(table) / 1e3, context / 1e3, drafting, -np.ones(len(table))])


def _distances(arms: pd.DataFrame, measured: Marks, seed: int) -> Floats:
    """Return how far each arm lies from the nearest measured one; at first, a random choice.

    Zero for all but the arms an octave off the default ring, while any of those is left.
    """
    rng = np.random.default_rng([seed, int(measured.sum())])
    jitter = 1e-6 * rng.random(len(arms))
    rivals = ~_is_default(arms)
    octaves = _octaves(arms)
    place = [arms["tier_cells"], arms["mode"], pd.Series(np.sign(octaves), index=arms.index)]
    off = pd.Series(np.abs(np.abs(octaves) - FIRST_OCTAVES), index=arms.index).where(rivals)
    first = rivals & (off == off.groupby(place).transform("min")).to_numpy(dtype=bool)
    wanted = first if (first & ~measured).any() else rivals
    if not measured.any():
        return np.where(wanted, jitter, 0.0)
    where = np.column_stack(
        [
            _unit(np.log2(arms["tier_cells"].to_numpy(dtype=float))),
            np.sign(octaves) / 2,
            (arms["mode"] == "on").to_numpy(dtype=float),
        ]
    )
    distances: Floats = cdist(where, where[measured]).min(axis=1) + jitter
    return np.where(wanted, distances, 0.0)


def _octaves(arms: pd.DataFrame) -> Floats:
    """Return how many doublings each arm's pool lies above the default ring's."""
    default = arms.assign(ring_cells=arms["default_ring_cells"])
    octaves: Floats = np.log2(pool_cells(arms) / pool_cells(default))
    return octaves


def _unit(values: Floats) -> Floats:
    """Return values scaled to 0..1."""
    low, reach = values.min(), np.ptp(values)
    scaled: Floats = (values - low) / (reach if reach else 1.0)
    return scaled
