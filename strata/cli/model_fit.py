"""Fit the cost model to a stored study, for the commands that need one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from strata.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from strata.models.cost_model import RingCostModel
    from strata.models.model_file import ModelFacts
    from strata.tuner.store import TrialStore
    from strata.tuner.study import StudyRecord


def fit_study(
    store: TrialStore, record: StudyRecord, confidence: float
) -> tuple[RingCostModel, ModelFacts]:
    """Return the model of a study and what it was measured under."""
    from strata.models.cost_model import RingCostModel
    from strata.models.model_file import ModelFacts
    from strata.tuner.conclude import fingerprint
    from strata.tuner.evidence import evidence_of

    plan = record.read_plan()
    frame = evidence_of(store, record)
    check_trials(frame, record, confidence)
    facts = ModelFacts(
        study=record.study,
        name=record.name,
        checkpoint=plan.model,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        engine_version=record.engine_version,
        fingerprint=fingerprint(record),
        default_ring_cells=record.default_ring_cells,
        max_new=plan.measure.max_new,
        tiers_cells=tuple(plan.grid.tiers),
    )
    return RingCostModel(confidence=confidence).fit(frame), facts


def check_trials(frame: pd.DataFrame, record: StudyRecord, confidence: float) -> None:
    """Raise UsageError where there is nothing to fit, or the confidence is no share."""
    if not 0 < confidence < 1:
        raise UsageError(f"--confidence: {confidence} is not between 0 and 1")
    if frame.empty:
        raise UsageError(f"study {record.study} ({record.name}) holds no trial yet")
