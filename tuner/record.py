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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union

from pydantic import Field

from strata.errors import StoreError
from strata.tuner.arms import DECODE, ORDER, PairSpec
from strata.tuner.blame import FAILED_ARMS
from strata.tuner.fields import (
    Cells,
    Conditions,
    Count,
    Depth,
    Drafts,
    Positive,
    Rate,
    Ratio,
    Seconds,
    Text,
    Word,
    check_fields,
    one_of,
    shown,
)
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

    record: Word = SCHEMA
    trial_id: Word
    study: Word
    pair_id: Word
    position: Annotated[int, Field(ge=0, lt=len(ORDER))]
    arm: Annotated[str, one_of(*sorted(set(ORDER)))]
    split: Annotated[str, one_of("search", "fresh")]
    tier_cells: Depth
    depth_cells: Depth
    passage: Word
    mode: Annotated[str, one_of("off", "on")]
    spec: Drafts
    mtp_window_cells: Count | None
    ring_cells: Depth
    pool_cells: Depth
    select: Word
    page_cells: Depth
    victims: Word
    vram_budget_bytes: Positive | None
    context_cells: Depth
    max_new: Depth
    kind: Annotated[str, one_of(*KINDS)]
    message: Text
    tokens: Cells | None = None
    token_hash: Word | None = None
    rounds: Cells | None = None
    decode_s: Seconds | None = None
    rounds_per_s: Rate | None = None
    tok_s: Rate | None = None
    tokens_per_round: Ratio | None = None
    accepted: list[Count] | None = None
    drafted: list[Count] | None = None
    tpot_p50_ms: Seconds | None = None
    tpot_p99_ms: Seconds | None = None
    prefill_s: Seconds | None = None
    ttft_ms: Seconds | None = None
    kv_lookups: Count | None = None
    kv_hits: Count | None = None
    kv_misses: Count | None = None
    kv_bytes: Count | None = None
    kv_overflows: Count | None = None
    expert_lookups: Count | None = None
    expert_misses: Count | None = None
    expert_slots: Count | None = None
    ledger: dict[Word, Count] | None = None
    repeats: Positive | None = None
    device: Word
    model_hash: Word
    engine_version: Word
    started_at: Word
    worker: Word
    """The machine, by `environment.machine_id`: what a pair never leaves."""
    conditions: Conditions | None = None
    """What the machine was like just after the run, by `strata.tuner.conditions`."""
    purpose: Annotated[str, one_of(*PURPOSES)] = DECODE
    """What the pair was run for: `strata.tuner.arms` has the words. Earlier runs all decoded."""
    failed_arm: Annotated[str, one_of(*FAILED_ARMS)] | None = None
    """Whose failure a run that failed is, by `strata.tuner.blame`; None where it is not known."""
    retry_of: Word | None = None
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
        if not isinstance(value.get("record"), str) or value["record"] not in _LACKING:
            got = shown(value.get("record"))
            raise StoreError(f"{origin}: expected record {SCHEMA!r}, got {got}")
        columns = _columns_of(value["record"])
        value = {name: one for name, one in value.items() if name in columns or one is not None}
        if wrong := sorted(set(value) ^ set(columns)):
            state = "unknown" if wrong[0] in value else "missing"
            raise StoreError(f"{origin}: {state} key {shown(wrong[0])}")
        record = cls(**value)
        record.check(origin=origin)
        return record

    def check(self, *, origin: str) -> None:
        """Raise StoreError, naming `origin`, where no run can have made such a record.

        A field is out of its range, or what the fields say together cannot be.
        """
        check_fields(type(self), {name: getattr(self, name) for name in COLUMNS}, origin=origin)
        for words in _contradictions(self):
            raise StoreError(f"{origin}: trial {shown(self.trial_id)} {words}")


def _columns() -> dict[str, tuple[type, ...]]:
    hints = typing.get_type_hints(TrialRecord)
    columns = {}
    for field in dataclasses.fields(TrialRecord):
        hint = hints[field.name]
        is_union = typing.get_origin(hint) in (Union, UnionType)
        parts = typing.get_args(hint) if is_union else (hint,)
        columns[field.name] = tuple(typing.get_origin(part) or part for part in parts)
    return columns


COLUMNS: dict[str, tuple[type, ...]] = _columns()
"""Name -> the Python types a value may have, in the order of the fields."""


def _columns_of(record: str) -> dict[str, tuple[type, ...]]:
    """Return the columns that a record of this schema has."""
    later = _LACKING.get(record, ())
    return {name: types for name, types in COLUMNS.items() if name not in later}


_NEEDED: dict[str, tuple[str, ...]] = {
    "prefill": ("tokens", "token_hash", "prefill_s", "ttft_ms"),
    DECODE: (
        "tokens", "token_hash", "rounds", "decode_s", "rounds_per_s", "tok_s", "tokens_per_round",
    ),
}  # fmt: skip
"""What a run of kind ok has measured, by its purpose; break-even decodes too."""

_SLACK = 1e-6
"""How far a stored rate may lie from the counts and seconds beside it, as a share of it."""


def _contradictions(record: TrialRecord) -> Iterator[str]:
    """Yield what the fields of one record say against each other."""
    if record.arm != ORDER[record.position]:
        yield f"is run {record.position} of its pair and cannot be of arm {record.arm!r}"
    if record.pool_cells > min(record.ring_cells, record.context_cells):
        yield f"has a pool of {record.pool_cells} cells, more than its ring or its context"
    for part, whole in (("kv_hits", "kv_lookups"), ("kv_misses", "kv_lookups")):
        few, many = getattr(record, part), getattr(record, whole)
        if few is not None and many is not None and few > many:
            yield f"has {few} {part} of {many} {whole}"
    if record.kind == "ok":
        if record.failed_arm is not None:
            yield f"is of kind ok and names {record.failed_arm!r} as its failed_arm"
        for name in _NEEDED.get(record.purpose, _NEEDED[DECODE]):
            if not getattr(record, name):
                yield f"is of kind ok and has no {name}"
                return
    yield from _wrong_rates(record)


def _wrong_rates(record: TrialRecord) -> Iterator[str]:
    """Yield each rate that is not what the counts and seconds of its own record make."""
    rounds, seconds, rate = record.rounds, record.decode_s, record.rounds_per_s
    if rounds and seconds and rate:
        due = rounds * (record.repeats or 1) / seconds
        if not math.isclose(rate, due, rel_tol=_SLACK):
            yield f"has rounds_per_s {rate:g}, and its rounds and decode_s make {due:g}"
    tokens, each = record.tokens, record.tokens_per_round
    # Decoding begins after the first token; earlier tools counted that one too.
    if tokens and rounds and each and not tokens - 1 - _SLACK <= each * rounds <= tokens + _SLACK:
        yield f"has tokens_per_round {each:g}, and {tokens} tokens in {rounds} rounds"
    if rate and each and record.tok_s and not math.isclose(record.tok_s, rate * each,
                                                           rel_tol=_SLACK):  # fmt: skip
        yield f"has tok_s {record.tok_s:g}, and its rounds and tokens make {rate * each:g}"


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
