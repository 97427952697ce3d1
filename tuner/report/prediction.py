"""What the cost model makes of a study: its figures beside the measured ones, and its errors.

The table rests on measured pairs alone. The model is fitted to the same trials and shown beside
them with the error it makes on prompt lengths and rings that it was not shown, so that a reader
knows what it would be worth where nothing was measured.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from strata.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

Json = dict[str, Any]
AXES = {"depth_cells": "prompt length", "pool_cells": "ring"}


def add_predictions(cells: list[Json], frame: pd.DataFrame) -> Json:
    """Give each measured cell its predicted rounds/s and return how good the model is.

    Where the trials are too few to fit it, the cells get none and the reason is returned.
    """
    from strata.models.cost_model import RingCostModel

    for cell in cells:
        cell["predicted_rounds_per_s"] = None
    usable = frame[frame["kind"] == "ok"]
    try:
        model = RingCostModel().fit(frame)
    except UsageError as error:
        return {"refused": str(error), "confidence": None, "errors": []}
    for cell in cells:
        mine = usable[
            (usable["tier_cells"] == cell["tier_cells"])
            & (usable["mode"] == cell["mode"])
            & (usable["ring_cells"] == cell["ring_cells"])
        ]
        if mine.empty:
            continue
        found = model.predict_frame(mine.iloc[[0]]).iloc[0]
        if not found["no_evidence"]:
            cell["predicted_rounds_per_s"] = {
                "mean": 1 / float(found["round_s"]),
                "lower": _rate(found["round_s_upper"]),
                "upper": _rate(found["round_s_lower"]),
            }
    return {"refused": None, "confidence": model.confidence, "errors": _left_out(frame)}


def _left_out(frame: pd.DataFrame) -> list[Json]:
    """Return the mean error of each method where a prompt length or a ring was left out."""
    from strata.models.evaluate import left_out_errors, summarise

    return [
        {
            "left_out": words,
            "method": str(row["method"]),
            "configurations": int(row["configurations"]),
            "mean_abs_error": float(row["mean_abs_error"]),
        }
        for axis, words in AXES.items()
        for row in summarise(left_out_errors(frame, axis)).to_dict("records")  # type: ignore[arg-type]
    ]


def _rate(seconds: float) -> float | None:
    """Return rounds/s for the bound of a round's time, None where there is no bound."""
    return 1 / float(seconds) if seconds > 0 and math.isfinite(seconds) else None
