"""Predict the time of a round from what it has to do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from strata.models.acceptance import Acceptance
from strata.models.features import NAMES, Features, num_rows
from strata.models.frame import levelled
from strata.models.offsets import Offsets
from strata.models.physics import Floats, RelativeNNLS

CONFIGURATION = (
    "tier_cells", "mode", "spec", "ring_cells", "passage", "mtp_window_cells", "select",
    "vram_budget_bytes",
)  # fmt: skip
"""What must be equal for two runs to be repeats of each other."""


LEAST_S = 1e-9
"""Below this no round is priced; nothing measured is near it."""


def one_of_each(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each configuration and passage, its speeds averaged in logs."""
    keys = list(CONFIGURATION)
    groups = trials.groupby(keys, dropna=False, sort=False)
    means = {
        name: np.exp(np.log(trials[name].astype(float)).groupby(groups.ngroup()).transform("mean"))
        for name in ("rounds_per_s", "tok_s")
    }
    return trials.assign(**means).drop_duplicates(keys)


def _no_fetches() -> Floats:
    """Return one made-up run [1, len(NAMES)], of no time, that has only pages to fetch.

    Where every round that selects also misses many pages, having pages to fetch and selecting are
    one price, and least squares would put it on either. One run that says that a fetch costs
    nothing puts it on selecting, which every such round does; against real evidence it is nothing.
    """
    row: Floats = np.array([[float(name == "page_fetches") for name in NAMES]])
    return row


@dataclass(frozen=True, slots=True)
class RoundTime:
    """Prices of a round's features, the curves beneath them, and what is left over where."""

    features: Features
    regression: RelativeNNLS
    acceptance: Acceptance
    """How many tokens a round yields, which decides how many pages it moves."""
    offsets: Offsets = field(default_factory=Offsets)

    @classmethod
    def learn(cls, trials: pd.DataFrame, acceptance: Acceptance | None = None) -> RoundTime:
        """Fit to finished trials, levelled; each passage of a configuration counts once."""
        features = Features.learn(trials)
        once = one_of_each(levelled(trials))
        seconds = 1 / once["rounds_per_s"].to_numpy(dtype=float)
        tokens = once["tokens_per_round"].to_numpy(dtype=float)
        matrix = features.matrix(once, tokens)
        regression = RelativeNNLS().fit(np.vstack([matrix, _no_fetches()]), np.append(seconds, 0.0))
        blank = cls(features, regression, acceptance or Acceptance.learn(trials))
        priced = regression.predict(matrix)
        residuals = np.log(seconds / np.where(priced > 0, priced, seconds))
        at = blank._tightest_log(once, blank._tokens(once))
        return replace(blank, offsets=Offsets.learn(once, residuals, at))

    def seconds(self, trials: pd.DataFrame) -> Floats:
        """Return the seconds of a round for what each row asks."""
        tokens = self._tokens(trials)
        offsets = self.offsets.log(trials, self._tightest_log(trials, tokens))
        seconds: Floats = self._priced(trials, tokens) * np.exp(offsets)
        return seconds

    def _tokens(self, trials: pd.DataFrame) -> Floats:
        """Return the tokens that a round is expected to yield."""
        tokens = self.acceptance.tokens_per_round(trials)
        # More drafts than any trial had: nothing is known, and all accepted is the dearest.
        return np.where(np.isnan(tokens), num_rows(trials), tokens)

    def _priced(self, trials: pd.DataFrame, tokens: Floats) -> Floats:
        return self.regression.predict(self.features.matrix(trials, tokens))

    def _tightest_log(self, trials: pd.DataFrame, tokens: Floats) -> Floats:
        """Return the logs of the seconds priced beside the fewest expert slots that were seen."""
        tightest = trials.assign(expert_slots=self.features.fewest_slots(trials))
        return np.log(np.maximum(self._priced(tightest, tokens), LEAST_S))

    @property
    def prices_s(self) -> dict[str, float]:
        """Return the seconds that one unit of each feature costs."""
        return dict(zip(NAMES, map(float, self.regression.coef_), strict=True))
