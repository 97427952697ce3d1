"""A study: one plan on one machine kind, one model, one engine; the unit that never mixes.

Its key is a hash of everything that would make its numbers incomparable with another's, so many
studies share one database, and a sweep that is started again finds its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

from strata.config import WINDOW_PATTERN
from strata.errors import StoreError
from strata.tuner.arms import ArmGrid, digest
from strata.tuner.environment import AUTO_FACT, EngineFacts
from strata.tuner.fields import Depth, Facts, Name, Text, Word, check_fields, shown
from strata.tuner.measure import PROTOCOL
from strata.tuner.plan import Plan, plan_from_json

SCHEMA = "strata.study/1"
KEY_DIGITS = 16
IDENTITY = (
    "plan_sha256",
    "protocol_sha256",
    "passages_sha256",
    "search_space_sha256",
    "model_hash",
    "device",
    "engine_version",
)
"""What the key is made of; two studies that differ in one of these are two studies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """What is stored of a study before its first trial."""

    record: Word = SCHEMA
    study: Word
    name: Name
    plan: Text
    """The canonical plan, as JSON text."""
    plan_sha256: Word
    protocol_sha256: Word
    passages_sha256: Word
    search_space_sha256: Word
    model_hash: Word
    device: Word
    engine_version: Word
    engine_commit: Word | None
    kv_dtype: Word
    default_ring_cells: Depth
    environment: Facts = field(default_factory=dict)
    created_at: Word

    def to_json(self) -> dict[str, Any]:
        """Return the study as plain JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: object, *, origin: str = "a study record") -> StudyRecord:
        """Read a study; raise StoreError where a key is missing, unknown or does not add up."""
        if not isinstance(value, dict) or value.get("record") != SCHEMA:
            raise StoreError(f"{origin}: expected a record {SCHEMA!r}")
        names = {one.name for one in dataclasses.fields(cls)}
        if wrong := sorted(set(value) ^ names):
            state = "unknown" if wrong[0] in value else "missing"
            raise StoreError(f"{origin}: {state} key {shown(wrong[0])}")
        check_fields(cls, value, origin=origin)
        study = cls(**value)
        if study.study != study_key({name: value[name] for name in IDENTITY}):
            raise StoreError(f"{origin}: its key {study.study!r} does not match its own facts")
        if hashlib.sha256(study.plan.encode()).hexdigest() != study.plan_sha256:
            raise StoreError(f"{origin}: study {study.study} is damaged, its plan was changed")
        return study

    def same_identity(self, other: StudyRecord) -> bool:
        """Return whether two records speak of one study."""
        return all(getattr(self, name) == getattr(other, name) for name in ("study", *IDENTITY))

    @property
    def grid(self) -> ArmGrid:
        """Return the grid of arms that the study measures."""
        return ArmGrid(self.read_plan(), self.default_ring_cells)

    @property
    def window_word(self) -> int | str:
        """Return the drafter's window as a policy table writes it: ``auto`` is what it was then."""
        window = self.read_plan().session.mtp_window
        return self.auto_window if window == "auto" else window

    @property
    def auto_window(self) -> str:
        """Return what ``auto`` was for the engine that measured; before that was told, the ring."""
        told = self.environment.get(AUTO_FACT)
        known = isinstance(told, str) and re.fullmatch(WINDOW_PATTERN, told, re.ASCII)
        return str(told) if known else "auto"

    def read_plan(self) -> Plan:
        """Return the plan; raise StoreError where this version does not know such a plan."""
        try:
            return plan_from_json(self.plan)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StoreError(
                f"study {self.study} has a plan that this strata cannot read; a newer one may"
            ) from error


def study_key(identity: dict[str, Any]) -> str:
    """Return the key of a study from the values of IDENTITY."""
    return digest([identity[name] for name in IDENTITY])[:KEY_DIGITS]


def create_study(grid: ArmGrid, facts: EngineFacts, *, created_at: str) -> StudyRecord:
    """Return the record of the study that a grid is on the machine that `facts` describes."""
    identity = {
        "plan_sha256": grid.plan.sha256,
        "protocol_sha256": digest(PROTOCOL),
        "passages_sha256": facts.passages_sha256,
        "search_space_sha256": grid.sha256(),
        "model_hash": facts.model_hash,
        "device": facts.device,
        "engine_version": facts.engine_version,
    }
    return StudyRecord(
        study=study_key(identity),
        name=grid.plan.name,
        plan=grid.plan.canonical(),
        engine_commit=facts.engine_commit,
        kv_dtype=facts.kv_dtype,
        default_ring_cells=grid.default_ring_cells,
        environment=facts.environment,
        created_at=created_at,
        **identity,
    )
