"""A trial record that no run can have measured is refused where it is read."""

from __future__ import annotations

import math

import pytest
from tuner_samples import all_pairs, make_records

from strata.errors import StoreError
from strata.tuner.record import TrialRecord
from strata.tuner.study import StudyRecord


@pytest.mark.parametrize("key", ["rounds_per_s", "decode_s", "tokens", "kv_misses"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf])
def test_numbers_that_nobody_measured(study: StudyRecord, key: str, value: float) -> None:
    document = make_records(all_pairs(study)[0])[0].to_json()
    assert TrialRecord.from_json(document).to_json() == document
    with pytest.raises(StoreError, match=f"'{key}' cannot be"):
        TrialRecord.from_json(document | {key: value})
