"""The ordered steps from an empty database to the newest schema; each runs in a transaction.

A step that was released is never edited: a new column is a new step, so that a database written
by any release opens for ever.
"""

from __future__ import annotations

import dataclasses
from types import NoneType

from strata.tuner.record import COLUMNS, is_nullable
from strata.tuner.study import StudyRecord

SQL_TYPES: dict[type, str] = {
    str: "VARCHAR",
    int: "BIGINT",
    float: "DOUBLE",
    list: "BIGINT[]",
    dict: "VARCHAR",
}
"""Dictionaries are kept as JSON text."""

_FIRST = """
CREATE TABLE studies (
    ordinal BIGINT NOT NULL, study VARCHAR PRIMARY KEY, record VARCHAR NOT NULL,
    name VARCHAR NOT NULL, plan VARCHAR NOT NULL, plan_sha256 VARCHAR NOT NULL,
    protocol_sha256 VARCHAR NOT NULL, passages_sha256 VARCHAR NOT NULL,
    search_space_sha256 VARCHAR NOT NULL, model_hash VARCHAR NOT NULL,
    device VARCHAR NOT NULL, engine_version VARCHAR NOT NULL, engine_commit VARCHAR,
    kv_dtype VARCHAR NOT NULL, default_ring_cells BIGINT NOT NULL,
    environment VARCHAR NOT NULL, created_at VARCHAR NOT NULL
);
CREATE TABLE trials (
    ordinal BIGINT NOT NULL, record VARCHAR NOT NULL, trial_id VARCHAR PRIMARY KEY,
    study VARCHAR NOT NULL, pair_id VARCHAR NOT NULL, "position" BIGINT NOT NULL,
    arm VARCHAR NOT NULL, split VARCHAR NOT NULL, tier_cells BIGINT NOT NULL,
    depth_cells BIGINT NOT NULL, passage VARCHAR NOT NULL, mode VARCHAR NOT NULL,
    spec BIGINT NOT NULL, mtp_window_cells BIGINT, ring_cells BIGINT NOT NULL,
    pool_cells BIGINT NOT NULL, "select" VARCHAR NOT NULL, page_cells BIGINT NOT NULL,
    victims VARCHAR NOT NULL, vram_budget_bytes BIGINT, context_cells BIGINT NOT NULL,
    max_new BIGINT NOT NULL, kind VARCHAR NOT NULL, message VARCHAR NOT NULL,
    tokens BIGINT, token_hash VARCHAR, rounds BIGINT, decode_s DOUBLE, rounds_per_s DOUBLE,
    tok_s DOUBLE, tokens_per_round DOUBLE, accepted BIGINT[], drafted BIGINT[],
    tpot_p50_ms DOUBLE, tpot_p99_ms DOUBLE, prefill_s DOUBLE, ttft_ms DOUBLE,
    kv_lookups BIGINT, kv_hits BIGINT, kv_misses BIGINT, kv_bytes BIGINT, kv_overflows BIGINT,
    expert_lookups BIGINT, expert_misses BIGINT, expert_slots BIGINT, ledger VARCHAR,
    repeats BIGINT, device VARCHAR NOT NULL, model_hash VARCHAR NOT NULL,
    engine_version VARCHAR NOT NULL, started_at VARCHAR NOT NULL, worker VARCHAR NOT NULL
);
CREATE INDEX trials_by_study ON trials (study);
"""

# DuckDB alters no table that an index lies on.
_SECOND = """
DROP INDEX trials_by_study;
ALTER TABLE trials ADD COLUMN conditions VARCHAR;
CREATE INDEX trials_by_study ON trials (study);
CREATE TABLE tries (
    ordinal BIGINT NOT NULL, study VARCHAR NOT NULL, pair_id VARCHAR NOT NULL,
    outcome VARCHAR NOT NULL
);
"""

_THIRD = """
DROP INDEX trials_by_study;
ALTER TABLE trials ADD COLUMN purpose VARCHAR;
CREATE INDEX trials_by_study ON trials (study);
"""

_FOURTH = """
CREATE TABLE acceptance (
    ordinal BIGINT NOT NULL, record VARCHAR NOT NULL, workload VARCHAR NOT NULL,
    model_hash VARCHAR NOT NULL, engine_version VARCHAR NOT NULL, device VARCHAR NOT NULL,
    conditions VARCHAR NOT NULL, name VARCHAR NOT NULL, depth_cells BIGINT NOT NULL,
    rounds BIGINT NOT NULL, tokens BIGINT NOT NULL, tries BIGINT[] NOT NULL,
    hits BIGINT[] NOT NULL, created_at VARCHAR NOT NULL
);
"""

_FIFTH = """
DROP INDEX trials_by_study;
ALTER TABLE trials ADD COLUMN failed_arm VARCHAR;
CREATE INDEX trials_by_study ON trials (study);
"""

_SIXTH = """
DROP INDEX trials_by_study;
ALTER TABLE trials ADD COLUMN retry_of VARCHAR;
CREATE INDEX trials_by_study ON trials (study);
"""

MIGRATIONS: tuple[str, ...] = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH)
VERSION = len(MIGRATIONS)


def expected_columns() -> dict[str, dict[str, tuple[str, bool]]]:
    """Return table -> column -> (SQL type, nullable) of the newest schema, from the records.

    The tests hold the steps above to this, so that a new field cannot be forgotten there.
    """
    trials = {
        name: (SQL_TYPES[_stored(types)], is_nullable(types)) for name, types in COLUMNS.items()
    }
    trials["purpose"] = ("VARCHAR", True)  # earlier rows have none
    studies = {field.name: ("VARCHAR", False) for field in dataclasses.fields(StudyRecord)}
    studies["engine_commit"] = ("VARCHAR", True)
    studies["default_ring_cells"] = ("BIGINT", False)
    ordinal = {"ordinal": ("BIGINT", False)}
    return {"trials": ordinal | trials, "studies": ordinal | studies}


def _stored(types: tuple[type, ...]) -> type:
    return next(one for one in types if one is not NoneType)
