"""A saved model is numbers: it comes back the same, and anything else is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from strata.errors import UsageError
from strata.models.cost_model import RingCostModel
from strata.models.model_file import (
    SCHEMA,
    ModelFacts,
    from_document,
    load_model_file,
    save_model,
    to_document,
)
from strata.models.simulate import Design, study
from strata.policy.fingerprint import Fingerprint
from strata.policy.table_document import body_hash

FACTS = ModelFacts(
    study="0123456789abcdef",
    name="made-up",
    checkpoint="bundled",
    created="2026-01-02T03:04:05+00:00",
    engine_version="0.1.0",
    fingerprint=Fingerprint(
        device="Device T", model_hash="ab" * 32, kv_dtype="bfloat16", page_cells=16, select="512"
    ),
    default_ring_cells=1_024,
    max_new=128,
    tiers_cells=(512, 1_024, 2_048, 4_096),
)
MIB = 1 << 20


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    frame = study(0, Design(budget_bytes=8 * MIB)).assign(select="256", kv_lookups=1_000)
    slots, rounds = frame["expert_slots"].astype(float), frame["rounds"]
    return frame.assign(
        expert_misses=rounds * (20 - slots / 8).clip(lower=0), kv_misses=rounds * 3.5
    )


@pytest.fixture(scope="module")
def model(frame: pd.DataFrame) -> RingCostModel:
    return RingCostModel().fit(frame)


@pytest.fixture
def document(model: RingCostModel) -> dict[str, Any]:
    return copy.deepcopy(to_document(model, FACTS))


def test_a_model_comes_back_as_it_was(
    model: RingCostModel, frame: pd.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "cost-model.json"
    save_model(model, FACTS, path)
    again, facts = load_model_file(path)
    assert facts == FACTS
    pd.testing.assert_frame_equal(again.predict_frame(frame), model.predict_frame(frame))
    assert again.get_params() == model.get_params()
    assert again.round_time_.prices_s == model.round_time_.prices_s


def test_unbounded_intervals_come_back_unbounded(frame: pd.DataFrame) -> None:
    one = RingCostModel().fit(frame[frame["passage"] == "4096:0"])
    again, _ = from_document(json.loads(json.dumps(to_document(one, FACTS), allow_nan=False)))
    assert again.half_widths_ == one.half_widths_


def test_a_foreign_schema_is_named(document: dict[str, Any]) -> None:
    document["schema"] = "strata.cost-model/2"
    with pytest.raises(UsageError, match=f"expected schema '{SCHEMA}', got 'strata.cost-model/2'"):
        from_document(document)
    with pytest.raises(UsageError, match="got 'list'"):
        from_document([])


def test_an_edited_number_is_noticed(document: dict[str, Any]) -> None:
    document["prices_s"]["rounds"] *= 2
    with pytest.raises(UsageError, match="damaged or edited"):
        from_document(document)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("prices_s", "rounds"), -1.0),
        (("prices_s", "rounds"), "free"),
        (("dense_scale",), True),
        (("expert_misses", 0, "slots"), [2.0, 1.0]),
        (("expert_misses", 0, "misses"), []),
        (("page_misses", "colour"), 1.0),
        (("facts", "fingerprint"), None),
        (("measured",), None),
        (("half_widths", 0), {}),
    ],
)
def test_a_value_that_cannot_be_is_refused(
    document: dict[str, Any], place: tuple[str | int, ...], value: object
) -> None:
    *path, last = place
    inner: Any = document
    for step in path:
        inner = inner[step]
    inner[last] = value
    document["sha256"] = body_hash(document)
    with pytest.raises(UsageError, match="damaged"):
        from_document(document)


@pytest.mark.parametrize("text", ["", "{", '{"a": NaN}', "[" * 100_000, "\udcff"])
def test_what_is_no_json_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "cost-model.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match="is not JSON"):
        load_model_file(path)
