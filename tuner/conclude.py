"""From the trials of a study to its policy table, through the cost model's decision rule."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from strata.config import PAGE_CELLS
from strata.errors import StoreError
from strata.policy.fingerprint import Fingerprint
from strata.policy.table import PolicyTable
from strata.policy.tiers import make_tiers
from strata.tuner.store import TrialStore
from strata.tuner.study import StudyRecord

if TYPE_CHECKING:
    import pandas as pd

    from strata.models.decide import Rule

OTHER_TOKENS = "the drafter changed the tokens: {here} with it, {plain} without"


def conclude(store: TrialStore, study: StudyRecord) -> PolicyTable:
    """Return the table of a study, every entry decided; raise StoreError where it has no trial."""
    from strata.models.export import TableFacts, build_table

    frame = judged(store.frame(study.study))
    if frame.empty:
        raise StoreError(f"study {study.study} ({study.name}) holds no trial yet")
    plan, rule = study.read_plan(), rule_of(study)
    facts = TableFacts(
        fingerprint=fingerprint(study),
        tiers=make_tiers(plan.grid.tiers),
        default_ring_cells=study.default_ring_cells,
        margin_ratio=rule.margin_ratio,
        confidence=plan.decision.confidence,
        no_regression=rule.no_regression,
        engine_version=study.engine_version.partition("+")[0],
        engine_commit=study.engine_commit,
        environment={**study.environment, "engine_build": study.engine_version},
        provenance={
            "study": study.study,
            "plan_sha256": study.plan_sha256,
            "protocol_sha256": study.protocol_sha256,
            "passages_sha256": study.passages_sha256,
            "measured_from": str(frame["started_at"].min()),
            "measured_to": str(frame["started_at"].max()),
        },
    )
    return build_table(frame, facts)


def rule_of(study: StudyRecord) -> Rule:
    """Return the decision rule of a study's plan."""
    from strata.models.decide import Rule

    decision = study.read_plan().decision
    return Rule(
        margin_ratio=decision.margin,
        alpha=1 - decision.confidence,
        no_regression=decision.rule == "no-regression",
    )


def fingerprint(study: StudyRecord) -> Fingerprint:
    """Return the conditions that a session must share for the study's table to speak of it."""
    session = study.read_plan().session
    return Fingerprint(
        device=study.device,
        model_hash=study.model_hash,
        kv_dtype=study.kv_dtype,
        page_cells=session.page,
        select=session.select,
        spec=session.drafts,
        mtp_window=session.mtp_window,
        victims=session.victims,
        vram_budget_bytes=session.vram_budget,
        context=session.context,
    )


def judged(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the trials with one more check: a drafter must not change a passage's tokens.

    A pair is checked within itself when it runs. Whether drafting gave what plain decoding gives
    is known only when both were measured, in whatever order; so it is a view and not a column.
    """
    plain = frame[(frame["mode"] == "off") & (frame["kind"] == "ok")]
    reference = plain.groupby("passage")["token_hash"].first()
    wanted = frame["passage"].map(reference)
    wrong = (
        (frame["mode"] == "on")
        & (frame["kind"] == "ok")
        & wanted.notna()
        & (frame["token_hash"] != wanted)
    )
    checked = frame.copy()
    for row in frame.index[wrong]:
        checked.loc[row, "kind"] = "wrong output"
        checked.loc[row, "message"] = OTHER_TOKENS.format(
            here=frame.loc[row, "token_hash"][:12], plain=wanted[row][:12]
        )
    return checked


def usage_line(study: StudyRecord, table_path: str) -> str:
    """Return the command that generates under the study's conditions with its table."""
    plan = study.read_plan()
    session = plan.session
    words = ["--kv-ring-policy", "learned", "--kv-ring-table", table_path]
    if plan.model != "bundled":
        words += ["--model", plan.model]
    drafting = "on" in plan.grid.modes
    words += ["--spec", str(session.drafts if drafting else 0)]
    if plan.grid.default_ring != "auto":
        words += ["--kv-ring-default", str(study.default_ring_cells)]
    if drafting and session.mtp_window != "auto":
        words += ["--mtp-window", str(session.mtp_window)]
    if session.select != "0":
        words += ["--kv-select", session.select]
    if session.victims != "clock":
        words += ["--kv-evict", session.victims]
    if session.page != PAGE_CELLS:
        words += ["--kv-page", str(session.page)]
    if session.vram_budget is not None:
        words += ["--vram-budget", str(session.vram_budget)]
    if session.context != "own":
        words += ["--max-context", str(session.context)]
    seed = (plan.passages.search + plan.passages.fresh)[-1]
    words += ["--passage", f"{plan.grid.tiers[-1]}:{seed}"]
    return "strata generate " + shlex.join(words)
