"""Answer what ring a session would get, and why, without a model.

The decision is made by the functions that a session calls. What only a model or a machine could
tell is assumed, and every assumption is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from strata.config import (
    DEFAULT_MAX_NEW,
    DEFAULT_RING_CELLS,
    MAX_DRAFTS,
    MAX_PAGE_CELLS,
    PAGE_CELLS,
    Selection,
)
from strata.env import KV_RING_TABLE, read_text
from strata.errors import UsageError
from strata.policy.decision import RingDecision
from strata.policy.fingerprint import DRAFTER_FIELDS, FIELDS, Fingerprint, Mode
from strata.policy.request import RingRequest, minimum_ring_cells, need_cells
from strata.policy.resolve import ResolvedPolicy, resolve_policy, settle_policy
from strata.policy.rules import choose_ring
from strata.policy.search import read_folders
from strata.policy.table import PolicyTable
from strata.policy.table_file import load_table

UNKNOWN = "unknown"
_DTYPE = {"cuda": "bfloat16", "cpu": "float32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Hold what a person told of a session; None is "not told"."""

    depth_cells: int
    max_new: int = DEFAULT_MAX_NEW
    policy: str | None = None
    table: str | None = None
    kv_resident: int | None = None
    ring_default_cells: int | None = None
    max_context_cells: int | None = None
    device_kind: str = "cuda"
    spec: int | Literal["auto"] | None = None
    page_cells: int | None = None
    select: str | None = None
    mtp_window: int | Literal["auto"] | None = None
    victims: str | None = None
    vram_budget_bytes: int | None = None

    @property
    def mode(self) -> Mode:
        """Return whether the session drafts; it does unless told otherwise."""
        return "off" if self.spec == 0 else "on"

    def check(self) -> None:
        """Raise UsageError where a session would refuse the same switches."""
        if self.depth_cells < 1:
            raise UsageError(f"--depth: {self.depth_cells} cells are no prompt; name at least one")
        if self.max_new < 1:
            raise UsageError(f"--max-new: {self.max_new} is not a number of new tokens from 1 up")
        if self.page_cells is not None and not 1 <= self.page_cells <= MAX_PAGE_CELLS:
            raise UsageError(f"--kv-page: {self.page_cells} is outside 1 to {MAX_PAGE_CELLS} cells")
        if self.spec not in (None, "auto") and not 0 <= int(self.spec) <= MAX_DRAFTS:
            raise UsageError(f"--spec: {self.spec} is outside 0 to {MAX_DRAFTS}")
        if self.mtp_window not in (None, "auto") and int(self.mtp_window) < 0:
            raise UsageError(f"--mtp-window: {self.mtp_window} is negative; 0 reads everything")

    def told(self) -> dict[str, Any]:
        """Return the fields of a fingerprint that were told."""
        names = ("page_cells", "select", "spec", "mtp_window", "victims", "vram_budget_bytes")
        fields = {name: getattr(self, name) for name in names}
        fields["context"] = self.max_context_cells
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Hold a decision with what led to it."""

    resolved: ResolvedPolicy
    request: RingRequest
    decision: RingDecision
    assumptions: tuple[str, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return every warning that the session would print, in order."""
        return (*self.resolved.warnings, *self.decision.warnings)


def explain_ring(question: Question, environ: Mapping[str, str]) -> Explanation:
    """Return the ring that a session under `question` would get; raise what the session would."""
    question.check()
    policy, _, _ = settle_policy(question.policy, environ)
    table = _reference_table(question, environ) if policy == "learned" else None
    fingerprint, assumptions = _assume_fingerprint(question, table)
    default, said = _assume_default(question, table)
    assumptions += said
    if question.vram_budget_bytes is not None:
        assumptions.append("the ring fits the memory budget: its bytes need a model to be known")
    resolved = resolve_policy(
        policy=question.policy,
        table=question.table,
        environ=environ,
        fingerprint=fingerprint,
        mode=question.mode,
    )
    page = fingerprint.page_cells
    need = need_cells(prompt_cells=question.depth_cells, max_new=question.max_new, page_cells=page)
    selection = Selection.parse(fingerprint.select)
    max_context = need if fingerprint.context == "own" else fingerprint.context
    if max_context < need:
        raise UsageError(f"--max-context: {max_context} cells are fewer than the {need} needed")
    request = RingRequest(
        policy=resolved.policy,
        need_cells=need,
        max_context_cells=max_context,
        page_cells=page,
        minimum_cells=minimum_ring_cells(selection, need_cells=need, page_cells=page),
        default_cells=default,
        kv_resident=question.kv_resident,
        mode=question.mode,
        fingerprint=fingerprint,
        table=resolved.table,
        table_origin=resolved.table_origin,
    )
    return Explanation(
        resolved=resolved,
        request=request,
        decision=choose_ring(request),
        assumptions=tuple(assumptions),
    )


def _reference_table(question: Question, environ: Mapping[str, str]) -> PolicyTable | None:
    """Return the table whose conditions stand in for what was not told, None without one."""
    named = question.table if question.table is not None else read_text(environ, KV_RING_TABLE)
    if named is not None:
        return load_table(named) if named.strip() else None  # which resolve_policy refuses
    found, _ = read_folders(environ)
    told, mode = question.told(), question.mode
    nearest = min(
        (item.table for item in found),
        key=lambda table: len(table.obstacles(replace(table.fingerprint, **told), mode)),
        default=None,
    )
    return nearest


def _assume_fingerprint(
    question: Question, table: PolicyTable | None
) -> tuple[Fingerprint, list[str]]:
    told = question.told()
    if table is not None:
        taken = [
            name
            for name in FIELDS
            if name not in told and not (question.mode == "off" and name in DRAFTER_FIELDS)
        ]
        assumptions = [f"as in the table: {', '.join(taken)}"] if taken else []
        return replace(table.fingerprint, **told), assumptions
    fingerprint = Fingerprint(
        device=UNKNOWN,
        model_hash=UNKNOWN,
        kv_dtype=_DTYPE[question.device_kind],
        page_cells=PAGE_CELLS,
    )
    said = []
    if "page_cells" not in told:
        said.append(f"pages of {PAGE_CELLS} cells")
    if "select" not in told:
        said.append("dense reading")
    if "spec" not in told:
        said.append("a model with an MTP layer, so one draft a round")
    assumptions = ["no model was given: " + ", ".join(said)] if said else []
    return replace(fingerprint, **told), assumptions


def _assume_default(question: Question, table: PolicyTable | None) -> tuple[int, list[str]]:
    if question.ring_default_cells is not None:
        return question.ring_default_cells, []
    if table is not None:
        return table.default_ring_cells, [f"default ring {table.default_ring_cells}: the table's"]
    default = DEFAULT_RING_CELLS[question.device_kind]
    return default, [f"default ring {default}: that of a {question.device_kind} device"]
