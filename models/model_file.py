"""Write a fitted cost model as JSON, and read it back: numbers alone, so that nothing executes.

A pickle runs code when it is loaded, and scikit-learn's own layouts change with its version. All
that this model knows is a few dozen numbers, so they are what is kept, with a hash over them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from strata.errors import UsageError
from strata.files import write_whole
from strata.json_text import parse_json
from strata.models.acceptance import Acceptance, RateLine
from strata.models.cost_model import QUANTITIES, RingCostModel
from strata.models.features import NAMES, Features
from strata.models.latency import RoundTime
from strata.models.misses import FallingCurve, PageMisses
from strata.models.offsets import Offset, Offsets
from strata.models.physics import RelativeNNLS
from strata.policy.fingerprint import Fingerprint
from strata.policy.table_document import body_hash

SCHEMA = "strata.cost-model/1"
MAX_FILE_BYTES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a model must say that its numbers do not: the conditions it was measured under."""

    study: str
    name: str
    checkpoint: str
    """The plan's: a folder, or ``bundled``."""
    created: str
    engine_version: str
    fingerprint: Fingerprint
    default_ring_cells: int
    max_new: int
    tiers_cells: tuple[int, ...]


def save_model(model: RingCostModel, facts: ModelFacts, path: Path) -> None:
    """Write a fitted model to `path`, whole or not at all."""
    document = to_document(model, facts)
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    write_whole(path, text.encode())


def load_model_file(path: Path) -> tuple[RingCostModel, ModelFacts]:
    """Return the model and its facts; raise UsageError for a file that is no such model."""
    try:
        content = path.read_bytes()
        if len(content) > MAX_FILE_BYTES:
            raise ValueError(f"{len(content)} bytes are more than any model has")
        document = parse_json(content)
    except OSError as error:
        raise UsageError(f"cost model {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"cost model {path} is not JSON: {error}") from error
    try:
        return from_document(document)
    except UsageError as error:
        raise UsageError(f"cost model {path}: {error}; fit it again") from error


def to_document(model: RingCostModel, facts: ModelFacts) -> dict[str, Any]:
    """Return the JSON document of a fitted model, its hash included."""
    part = model.round_time_
    pages = part.features.page_misses
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "facts": asdict(facts) | {"tiers_cells": list(facts.tiers_cells)},
        "confidence": float(model.confidence),
        "penalty": float(model.penalty),
        "prices_s": part.prices_s,
        "page_misses": None if pages is None else asdict(pages),
        "dense_scale": part.features.dense_scale,
        "expert_misses": [
            {"rows": rows, "slots": list(curve.at), "misses": list(curve.values)}
            for rows, curve in sorted(part.features.expert_misses.items())
        ],
        "tells_selecting": part.features.tells_selecting,
        "offsets": [asdict(place) for place in part.offsets.places],
        "acceptance": [
            {"intercept": line.intercept, "slopes": list(line.slopes)}
            for line in model.acceptance_.positions
        ],
        "half_widths": [
            {"quantity": name, "mode": mode, "log": width if math.isfinite(width) else None}
            for (name, mode), width in sorted(model.half_widths_.items())
        ],
        "measured": {
            mode: {name: list(ends) for name, ends in seen.items()}
            for mode, seen in sorted(model.measured_.items())
        },
    }
    document["sha256"] = body_hash(document)
    return document


def from_document(document: object) -> tuple[RingCostModel, ModelFacts]:
    """Return what a document holds; raise UsageError where it is another's, damaged or odd."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise UsageError(f"expected schema {SCHEMA!r}, got {found!r}")
    if document.get("sha256") != body_hash(document):
        raise UsageError("its numbers do not have the hash that it names: it is damaged or edited")
    try:
        return _model(document), _facts(document["facts"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"it is damaged: {error!r}") from error


def _model(document: dict[str, Any]) -> RingCostModel:
    model = RingCostModel(
        confidence=_number(document["confidence"]), penalty=_number(document["penalty"])
    )
    prices = {name: _number(price, least=0) for name, price in document["prices_s"].items()}
    regression = RelativeNNLS()
    regression.coef_ = np.array([prices[name] for name in NAMES])
    regression.n_features_in_ = len(NAMES)
    pages = document["page_misses"]
    features = Features(
        page_misses=None
        if pages is None
        else PageMisses(**{name: _number(value, least=0) for name, value in pages.items()}),
        dense_scale=_number(document["dense_scale"], least=0),
        expert_misses={int(one["rows"]): _curve(one) for one in document["expert_misses"]},
        tells_selecting=bool(document["tells_selecting"]),
    )
    model.acceptance_ = Acceptance(
        tuple(
            RateLine(_number(one["intercept"]), tuple(_numbers(one["slopes"])))
            for one in document["acceptance"]
        )
    )
    offsets = Offsets(tuple(_offset(one) for one in document["offsets"]))
    model.round_time_ = RoundTime(features, regression, model.acceptance_, offsets)
    model.half_widths_ = {
        (str(one["quantity"]), str(one["mode"])): math.inf
        if one["log"] is None
        else _number(one["log"], least=0)
        for one in document["half_widths"]
        if one["quantity"] in QUANTITIES
    }
    model.measured_ = {
        str(mode): {str(name): (_number(low), _number(high)) for name, (low, high) in seen.items()}
        for mode, seen in document["measured"].items()
    }
    return model


def _facts(value: dict[str, Any]) -> ModelFacts:
    fingerprint = Fingerprint(**value["fingerprint"])
    tiers = tuple(int(tier) for tier in value["tiers_cells"])
    return ModelFacts(**{**value, "fingerprint": fingerprint, "tiers_cells": tiers})


def _offset(value: dict[str, Any]) -> Offset:
    at, logs = _numbers(value["at"]), _numbers(value["logs"])
    if len(at) != len(logs) or not at or at != sorted(set(at)):
        raise ValueError("an offset has no points, or not in order")
    return Offset(
        depth_cells=_number(value["depth_cells"], least=1),
        rows=int(value["rows"]),
        select=str(value["select"]),
        at=tuple(at),
        logs=tuple(logs),
    )


def _curve(value: dict[str, Any]) -> FallingCurve:
    at, values = _numbers(value["slots"]), _numbers(value["misses"])
    if len(at) != len(values) or not at or at != sorted(at):
        raise ValueError("a curve has no points, or not in order")
    return FallingCurve(tuple(at), tuple(values))


def _numbers(values: Sequence[object]) -> list[float]:
    return [_number(value) for value in values]


def _number(value: object, *, least: float = -math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    if value < least:
        raise ValueError(f"{value} is below {least}")
    return float(value)
