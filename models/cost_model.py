"""Predict decode in tok/s for a ring that was not measured: tokens per round over its time.

The two factors are learned apart, because the first belongs to the workload and the second to
the machine. Intervals come from leaving out passages in turn (`strata.models.conformal`).
Outside the depths, rings and modes that were measured there is no evidence and no number:
conformal intervals that hold inside do not hold at an unseen deepest tier.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from strata.errors import UsageError
from strata.models.acceptance import Acceptance
from strata.models.conformal import half_width, passage_folds
from strata.models.features import num_rows, pool_cells
from strata.models.frame import checked, levelled
from strata.models.latency import RoundTime, one_of_each
from strata.models.physics import Floats

EXPECTED_FAILED_CHECKS = dict.fromkeys(
    (
        "check_complex_data", "check_dict_unchanged", "check_dont_overwrite_parameters",
        "check_dtype_object", "check_estimator_sparse_array", "check_estimator_sparse_matrix",
        "check_estimator_sparse_tag", "check_estimators_dtypes",
        "check_estimators_empty_data_messages", "check_estimators_fit_returns_self",
        "check_estimators_nan_inf", "check_estimators_overwrite_params",
        "check_estimators_pickle", "check_f_contiguous_array_estimator", "check_fit1d",
        "check_fit2d_1feature", "check_fit2d_1sample", "check_fit2d_predict1d",
        "check_fit_check_is_fitted", "check_fit_idempotent", "check_fit_score_takes_y",
        "check_methods_sample_order_invariance", "check_methods_subset_invariance",
        "check_n_features_in", "check_n_features_in_after_fitting", "check_pipeline_consistency",
        "check_positive_only_tag_during_fit", "check_readonly_memmap_input",
        "check_regressor_data_not_an_array", "check_regressors_int",
        "check_regressors_no_decision_function", "check_regressors_train",
        "check_requires_y_none", "check_supervised_y_2d", "check_supervised_y_no_nan",
    ),
    "it feeds an array; this model takes a frame of trials, whose columns have names and units",
)  # fmt: skip
"""The checks of scikit-learn's `check_estimator` that `RingCostModel` fails, and why."""

QUANTITIES = ("round_s", "tokens_per_round", "tok_s")
ASKED = (
    "mode", "spec", "depth_cells", "max_new", "context_cells", "ring_cells",
    "mtp_window_cells", "select", "expert_slots",
)  # fmt: skip
"""The columns that a prediction reads."""


class RingCostModel(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Predict tok/s of a session from its tier, mode and ring, with intervals.

    It takes trial frames (`strata.models.frame`) and not arrays: its features have names, units
    and a geometry that an array cannot carry. So of scikit-learn's `check_estimator` those checks
    fail that feed it arrays, all for that one reason (EXPECTED_FAILED_CHECKS); the others hold,
    and the regression inside, `RelativeNNLS`, passes all of them.

    Parameters
    ----------
    confidence : float, default=0.9
        The share of new passages whose value should lie in the interval.
    penalty : float, default=1.0
        The ridge penalty of the acceptance part.

    Attributes
    ----------
    round_time_ : RoundTime
        The machine's part.
    acceptance_ : Acceptance
        The workload's part.
    half_widths_ : dict
        By (quantity, mode), the half width of its interval in logs.
    measured_ : dict
        By mode, the smallest and largest depth, pool, drafts and expert slots seen in `fit`.
    """

    def __init__(self, *, confidence: float = 0.9, penalty: float = 1.0) -> None:
        self.confidence = confidence
        self.penalty = penalty

    def fit(self, X: pd.DataFrame, y: object = None) -> RingCostModel:
        """Fit to the finished trials in a frame; the measured values are its own columns.

        Raises TypeError for anything but a frame, UsageError when it is not usable or holds no
        finished trial.
        """
        if not isinstance(X, pd.DataFrame):
            raise TypeError(f"RingCostModel takes a pandas frame of trials, got {type(X).__name__}")
        if not 0 < self.confidence < 1:
            raise UsageError(f"confidence is {self.confidence}; it lies between 0 and 1")
        trials = checked(X)
        trials = trials[trials["kind"] == "ok"]
        if trials.empty:
            raise UsageError("no trial finished, so there is nothing to fit the cost model to")
        trials = one_of_each(levelled(trials))
        self._fit_parts(trials)
        residuals = self._left_out_residuals(trials)
        self.half_widths_ = {
            (name, str(mode)): half_width(
                group[name].to_numpy(dtype=float), group["passage"].tolist(), self.confidence
            )
            for mode, group in residuals.groupby("mode")
            for name in QUANTITIES
        }
        self.measured_ = {str(mode): _range(group) for mode, group in trials.groupby("mode")}
        return self

    def predict(self, X: pd.DataFrame) -> Floats:
        """Return tok/s for each row of `X` (columns ASKED), NaN where there is no evidence."""
        values: Floats = self.predict_frame(X)["tok_s"].to_numpy(dtype=float)
        return values

    def predict_frame(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return every quantity with its bounds, and why there is no evidence (empty: there is).

        Columns: each of QUANTITIES with ``_lower`` and ``_upper`` beside it, and `no_evidence`.
        """
        check_is_fitted(self, "half_widths_")
        values = self._point(X)
        reasons = [self._no_evidence(row) for row in _asked(X).to_dict("records")]
        for name in QUANTITIES:
            reach = np.array(
                [self.half_widths_.get((name, str(mode)), np.inf) for mode in X["mode"]]
            )
            values[f"{name}_lower"] = values[name] * np.exp(-reach)
            values[f"{name}_upper"] = values[name] * np.exp(reach)
        values[[reason != "" for reason in reasons]] = np.nan
        values["no_evidence"] = reasons
        return values

    def _fit_parts(self, trials: pd.DataFrame) -> None:
        self.acceptance_ = Acceptance.learn(trials, self.penalty)
        self.round_time_ = RoundTime.learn(trials, self.acceptance_)

    def _point(self, trials: pd.DataFrame) -> pd.DataFrame:
        seconds = self.round_time_.seconds(trials)
        tokens = self.acceptance_.tokens_per_round(trials)
        columns = {"round_s": seconds, "tokens_per_round": tokens, "tok_s": tokens / seconds}
        return pd.DataFrame(columns, index=trials.index)

    def _left_out_residuals(self, trials: pd.DataFrame) -> pd.DataFrame:
        """Return measured over predicted in logs, each passage predicted without itself."""
        parts = []
        folds = passage_folds(trials["passage"].tolist())
        for fold in np.unique(folds):
            mine, others = trials[folds == fold], trials[folds != fold]
            if others.empty:
                continue
            model = RingCostModel(confidence=self.confidence, penalty=self.penalty)
            model._fit_parts(others)
            predicted = np.log(model._point(mine))
            measured = mine.assign(round_s=1 / mine["rounds_per_s"])[list(QUANTITIES)]
            gap = np.log(measured) - predicted
            parts.append(gap.assign(passage=mine["passage"], mode=mine["mode"]))
        if not parts:
            return pd.DataFrame(columns=[*QUANTITIES, "passage", "mode"])
        return pd.concat(parts).dropna()

    def _no_evidence(self, row: dict[str, Any]) -> str:
        """Return why a row lies outside of what was measured, empty where it does not."""
        seen = self.measured_.get(str(row["mode"]))
        if seen is None:
            return f"the drafter was never {row['mode']} in the trials"
        for name, (low, high) in seen.items():
            if np.isfinite(row[name]) and not low <= row[name] <= high:
                return (
                    f"{name} {row[name]:,.0f} lies outside the measured {low:,.0f} to {high:,.0f}"
                )
        return ""


def _asked(X: pd.DataFrame) -> pd.DataFrame:
    """Return the columns that evidence is judged by."""
    return pd.DataFrame(
        {
            "mode": X["mode"].astype(str),
            "depth_cells": X["depth_cells"].astype(float),
            "pool_cells": pool_cells(X),
            "drafts": num_rows(X) - 1,
            "expert_slots": pd.to_numeric(X["expert_slots"]).astype(float),
        }
    )


def _range(trials: pd.DataFrame) -> dict[str, tuple[float, float]]:
    asked = _asked(trials).drop(columns="mode").dropna(axis="columns", how="all")
    return {str(name): (float(asked[name].min()), float(asked[name].max())) for name in asked}
