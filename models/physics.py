"""Fit a time as a sum of non-negative prices: so many seconds per cell read, page missed, draft.

Non-negative least squares (Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23)
on relative errors, because a round at 128K takes many times one at 1K and both should fit by the
same percentage. A price cannot be negative, so the time is monotone in every feature.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

Floats = NDArray[np.float64]


class RelativeNNLS(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Regress on features with coefficients that are never negative, by relative error.

    Parameters
    ----------
    relative : bool, default=True
        Weigh each sample by one over its target's size; targets of zero get the mean size.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        The price of a unit of each feature; there is no intercept, give a column of ones.
    n_features_in_ : int
        Number of features seen in `fit`.
    """

    def __init__(self, *, relative: bool = True) -> None:
        self.relative = relative

    def fit(self, X: ArrayLike, y: ArrayLike) -> RelativeNNLS:
        """Fit the prices; columns are scaled to their largest value inside."""
        features, target = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
        size = np.abs(target)
        size = np.where(size > 0, size, size.mean() or 1.0)
        weight = 1.0 / size if self.relative else np.ones_like(size)
        scale = np.abs(features).max(axis=0)
        scale = np.where(scale > 0, scale, 1.0)
        prices, _ = nnls(features / scale * weight[:, None], target * weight)
        self.coef_ = prices / scale
        return self

    def predict(self, X: ArrayLike) -> Floats:
        """Return the time of each row of features."""
        check_is_fitted(self)
        features = validate_data(self, X, reset=False, dtype=np.float64)
        predicted: Floats = features @ self.coef_
        return predicted

    def __sklearn_tags__(self) -> Any:
        """Say that a sum of non-negative prices cannot follow arbitrary data."""
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags
