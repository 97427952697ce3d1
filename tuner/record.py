"""The trial record: one measured run, as it is written, stored and read everywhere.

A run that failed is a record with a kind and no numbers, never a zero. The fields below are the
columns of the database, of the JSON lines and of the frame that the cost model is fitted on. A
record of an earlier schema lacks the later columns, in JSON too, and stays as it was written.
"""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal

from strata.errors import StoreError
from strata.tuner.arms import DECODE, ORDER, PairSpec
from strata.tuner.blame import FAILED_ARMS
from strata.tuner.plan import Purpose

SCHEMA = "strata.trial/5"
LATER_COLUMNS: tuple[str, ...] = ("conditions", "purpose", "failed_arm", "retry_of")
"""The columns that records of the first schema do not have, in the order they came."""

_LACKING = {f"strata.trial/{n}": LATER_COLUMNS[n - 1 :] for n in range(1, 6)}

Kind = Literal["ok", "out of memory", "crash", "timeout", "wrong output", "unstable", "interrupted"]
KINDS: tuple[str, ...] = typing.get_args(Kind)
PURPOSES: tuple[str, ...] = typing.get_args(Purpose)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """One run of one arm on one passage within a pair; times in the unit of the name."""

    record: str = SCHEMA
    trial_id: str
    study: str
    pair_id: str
    position: int
    arm: str
    split: str
    tier_cells: int
    depth_cells: int
    passage: str
    mode: str
    spec: int
    mtp_window_cells: int | None
    ring_cells: int
    pool_cells: int
    select: str
    page_cells: int
    victims: str
    vram_budget_bytes: int | None
    context_cells: int
    max_new: int
    kind: str
    message: str
    tokens: int | None = None
    token_hash: str | None = None
    rounds: int | None = None
    decode_s: float | None = None
    rounds_per_s: float | None = None
    tok_s: float | None = None
    tokens_per_round: float | None = None
    accepted: list[int] | None = None
    drafted: list[int] | None = None
    tpot_p50_ms: float | None = None
    tpot_p99_ms: float | None = None
    prefill_s: float | None = None
    ttft_ms: float | None = None
    kv_lookups: int | None = None
    kv_hits: int | None = None
    kv_misses: int | None = None
    kv_bytes: int | None = None
    kv_overflows: int | None = None
    expert_lookups: int | None = None
    expert_misses: int | None = None
    expert_slots: int | None = None
    ledger: dict[str, int] | None = None
    repeats: int | None = None
    device: str
    model_hash: str
    engine_version: str
    started_at: str
    worker: str
    """The machine, by `environment.machine_id`: what a pair never leaves."""
    conditions: dict[str, Any] | None = None
    """What the machine was like just after the run, by `strata.tuner.conditions`."""
    purpose: str = DECODE
    """What the pair was run for: `strata.tuner.arms` has the words. Earlier runs all decoded."""
    failed_arm: str | None = None
    """Whose failure a run that failed is, by `strata.tuner.blame`; None where it is not known."""
    retry_of: str | None = None
    """The planned pair that failed and that this one repeats, None in a planned pair itself."""

    @property
    def planned_id(self) -> str:
        """Return the id of the planned pair, whichever try of it this belongs to."""
        return self.retry_of or self.pair_id

    def to_json(self) -> dict[str, Any]:
        """Return the record as plain JSON, its keys in the order of the fields."""
        return {name: getattr(self, name) for name in _columns_of(self.record)}

    def to_line(self) -> str:
        """Return the record as one line of JSON, without the newline."""
        return json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, value: object, *, origin: str = "a trial record") -> TrialRecord:
        """Read a record; raise StoreError that names `origin` and the key at fault."""
        if not isinstance(value, dict):
            raise StoreError(f"{origin}: expected a JSON object, got {type(value).__name__}")
        if value.get("record") not in _LACKING:
            raise StoreError(f"{origin}: expected record {SCHEMA!r}, got {value.get('record')!r}")
        columns = _columns_of(value["record"])
        value = {name: one for name, one in value.items() if name in columns or one is not None}
        if wrong := sorted(set(value) ^ set(columns)):
            state = "unknown" if wrong[0] in value else "missing"
            raise StoreError(f"{origin}: {state} key {wrong[0]!r}")
        for name, types in columns.items():
            if not _fits(value[name], types):
                raise StoreError(f"{origin}: key {name!r} cannot be {value[name]!r}")
        if value["kind"] not in KINDS:
            raise StoreError(f"{origin}: kind {value['kind']!r} is none of {', '.join(KINDS)}")
        if value.get("purpose", DECODE) not in PURPOSES:
            listed = ", ".join(PURPOSES)
            raise StoreError(f"{origin}: purpose {value['purpose']!r} is none of {listed}")
        if value.get("failed_arm") not in (None, *FAILED_ARMS):
            listed = ", ".join(FAILED_ARMS)
            raise StoreError(f"{origin}: failed_arm {value['failed_arm']!r} is none of {listed}")
        return cls(**value)


def _columns() -> dict[str, tuple[type, ...]]:
    hints = typing.get_type_hints(TrialRecord)
    columns = {}
    for field in dataclasses.fields(TrialRecord):
        hint = hints[field.name]
        parts = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
        columns[field.name] = tuple(typing.get_origin(part) or part for part in parts)
    return columns


COLUMNS: dict[str, tuple[type, ...]] = _columns()
"""Name -> the Python types a value may have, in the order of the fields."""


def _columns_of(record: str) -> dict[str, tuple[type, ...]]:
    """Return the columns that a record of this schema has."""
    later = _LACKING.get(record, ())
    return {name: types for name, types in COLUMNS.items() if name not in later}


def _fits(value: object, types: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, int | float) and not 0 <= value < math.inf:
        return False  # no count, rate or time is negative, endless or no number
    if isinstance(value, int) and float in types:
        return True
    return isinstance(value, types)


def planned(spec: PairSpec, position: int) -> dict[str, Any]:
    """Return the columns of a run that its pair already fixes."""
    side = spec.side(position)
    return {
        "trial_id": spec.trial_id(position),
        "study": spec.study,
        "pair_id": spec.pair_id,
        "position": position,
        "arm": ORDER[position],
        "split": spec.split,
        "tier_cells": spec.tier_cells,
        "depth_cells": spec.depth_cells,
        "passage": spec.passage,
        "mode": side.mode,
        "spec": side.spec,
        "mtp_window_cells": side.mtp_window_cells,
        "ring_cells": spec.ring_cells(position),
        "pool_cells": spec.pool_cells(position),
        "select": spec.select,
        "page_cells": spec.page_cells,
        "victims": spec.victims,
        "vram_budget_bytes": spec.vram_budget_bytes,
        "context_cells": spec.context_cells,
        "max_new": spec.max_new,
        "purpose": spec.purpose,
        "retry_of": spec.planned_id if spec.retry else None,
    }


def last_tries(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the records that count: of a pair that was tried again, those of its last try."""
    last: dict[str, tuple[str, bool, str]] = {}
    for one in records:
        began = (one.started_at, one.retry_of is not None, one.pair_id)
        last[one.planned_id] = max(began, last.get(one.planned_id, began))
    kept = {pair for _, _, pair in last.values()}
    return [one for one in records if one.pair_id in kept]


def is_nullable(types: tuple[type, ...]) -> bool:
    """Return whether a column may be missing."""
    return NoneType in types
