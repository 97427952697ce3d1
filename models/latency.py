"""Predict the time of a round from what it has to do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from strata.models.features import NAMES, Features
from strata.models.physics import Floats, RelativeNNLS


@dataclass(frozen=True, slots=True)
class RoundTime:
    """Prices of a round's features, with the curves beneath them."""

    features: Features
    regression: RelativeNNLS

    @classmethod
    def learn(cls, trials: pd.DataFrame) -> RoundTime:
        """Fit to finished trials; each passage of a configuration counts once."""
        features = Features.learn(trials)
        keys = ["tier_cells", "mode", "spec", "ring_cells", "passage", "mtp_window_cells", "select"]
        once = trials.assign(_log_s=-np.log(trials["rounds_per_s"].astype(float)))
        mean = once.groupby(keys, dropna=False, sort=True)["_log_s"].transform("mean")
        once = once.assign(_log_s=mean).drop_duplicates(keys)
        seconds = np.exp(once["_log_s"].to_numpy(dtype=float))
        return cls(features, RelativeNNLS().fit(features.matrix(once), seconds))

    def seconds(self, trials: pd.DataFrame) -> Floats:
        """Return the seconds of a round for what each row asks."""
        return self.regression.predict(self.features.matrix(trials))

    @property
    def prices_s(self) -> dict[str, float]:
        """Return the seconds that one unit of each feature costs."""
        return dict(zip(NAMES, map(float, self.regression.coef_), strict=True))
