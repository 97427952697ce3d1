"""Everything that says what a cost model is worth on a study, in one value."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from strata.models.choice import left_out_choices, summarise_choices
from strata.models.decide import Rule
from strata.models.evaluate import (
    Axis,
    Coverage,
    Silence,
    coverage,
    left_out_errors,
    silence,
    summarise,
)
from strata.models.regret import regret
from strata.models.rivals import Rivalry, compare_rivals

AXES: dict[Axis, str] = {"depth_cells": "depth", "pool_cells": "ring"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What the model and its rivals make of what they were not shown."""

    errors: pd.DataFrame
    """left_out (depth or ring), method, configurations, mean_abs_error, max_abs_error,
    rank_correlation; a ratio of a round's time."""
    coverage: tuple[Coverage, ...]
    silence: Silence
    choices: pd.DataFrame
    """By policy, the loss at depths that were left out (`strata.models.choice`)."""
    regret: pd.DataFrame
    """By policy, the regret on other passages of measured depths (`strata.models.regret`)."""
    rivalry: Rivalry
    """The learned table beside every other policy, passage by passage."""

    def to_json(self) -> dict[str, Any]:
        """Return the judgement as plain JSON; what is not a number is null."""
        return {
            "errors": _records(self.errors),
            "coverage": [asdict(one) for one in self.coverage],
            "silence": asdict(self.silence),
            "choices": _records(self.choices),
            "regret": _records(self.regret),
            "scored_on": self.rivalry.split,
            "rivals": _records(self.rivalry.rivals),
            "entries": _records(self.rivalry.entries),
        }


def judge_model(
    frame: pd.DataFrame,
    rule: Rule,
    default_ring_cells: int,
    *,
    confidence: float = 0.9,
    halvings: int = 20,
) -> Judgement:
    """Return what a model fitted to parts of `frame` is worth on the rest.

    Raises UsageError where the frame is not usable.
    """
    errors = [
        summarise(left_out_errors(frame, axis)).assign(left_out=words)
        for axis, words in AXES.items()
    ]
    scores = regret(frame, rule, default_ring_cells, halvings=halvings)
    return Judgement(
        errors=pd.concat(errors, ignore_index=True),
        coverage=coverage(frame, confidence=confidence),
        silence=silence(frame),
        choices=summarise_choices(left_out_choices(frame, default_ring_cells)),
        regret=scores[scores["entries"] > 0].reset_index(drop=True),
        rivalry=compare_rivals(frame, rule, default_ring_cells),
    )


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {str(name): None if isinstance(v, float) and not math.isfinite(v) else v
         for name, v in row.items()}
        for row in table.to_dict("records")
    ]  # fmt: skip
