"""Say how far a prediction for a new passage may be off, from passages that were left out.

Residuals of one passage hang together, so the passage and not the run is what counts. Each
passage's residuals share a weight of one (the pooled distribution of Dunn, Wasserman and Ramdas,
"Distribution-free prediction sets for two-layer hierarchical models", JASA 2023), and the
quantile is taken as in split conformal prediction with one passage more than were seen. With too
few passages for that quantile to exist, Student's t on the root mean square stands in for it.
The promise is on average over the study's tiers, and for passages like its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from strata.models.physics import Floats

MOST_FOLDS = 16


def passage_folds(passages: Sequence[str]) -> NDArray[np.intp]:
    """Return the fold of each run [n]: passages whole, each its own fold where there are few.

    With more than MOST_FOLDS passages they share folds, dealt out in the order of their names, so
    that a fold holds passages of many depths and a model is fitted MOST_FOLDS times at most.
    """
    names, index = np.unique(np.asarray(passages), return_inverse=True)
    folds: NDArray[np.intp] = index % min(len(names), MOST_FOLDS)
    return folds


def half_width(residuals: Floats, passages: Sequence[str], confidence: float) -> float:
    """Return h such that a new passage's residual lies within -h..h at `confidence`.

    Infinite with fewer than two passages.
    """
    names, index = np.unique(np.asarray(passages), return_inverse=True)
    count = len(names)
    if count < 2:
        return float("inf")
    weights = 1.0 / np.bincount(index)[index] / count
    size = np.abs(residuals)
    target = confidence * (count + 1) / count
    if target > 1:
        spread = float(np.sqrt(np.sum(weights * size**2)))
        reach = stats.t.ppf((1 + confidence) / 2, count - 1) * np.sqrt(1 + 1 / count)
        return float(reach * spread)
    order = np.argsort(size, kind="stable")
    reached = np.cumsum(weights[order]) >= target - 1e-12
    return float(size[order][np.argmax(reached)])
