"""From the trials of a study to its policy table, through the cost model's decision rule."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from strata.config import PAGE_CELLS
from strata.errors import StoreError
from strata.policy.fingerprint import Fingerprint
from strata.policy.table import DOCUMENTS, PolicyTable
from strata.policy.tiers import make_tiers
from strata.tuner.evidence import evidence_of, samples_of_study
from strata.tuner.passages import documents_of
from strata.tuner.store import TrialStore
from strata.tuner.study import StudyRecord

if TYPE_CHECKING:
    from strata.models.decide import Rule

NOTHING_TO_USE = "no ring is adopted: with this table a session keeps the default ring"


def conclude(store: TrialStore, study: StudyRecord, *, partial: bool = False) -> PolicyTable:
    """Return the table of a study, every entry decided; raise StoreError where it has no trial.

    While pairs of the plan are still to be measured every entry is undecided; with `partial` what
    there is is judged as if no more were to come.
    """
    from strata.models.export import TableFacts, build_table

    frame = evidence_of(store, study)
    if frame.empty:
        raise StoreError(f"study {study.study} ({study.name}) holds no trial yet")
    plan, rule = study.read_plan(), rule_of(study)
    samples = samples_of_study(store, study)
    seeds = plan.passages
    extent = {"pairs": f"{samples.done_pairs} of {samples.total_pairs}"}
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
            DOCUMENTS: " ".join(sorted(documents_of(seeds.search + seeds.fresh))),
            "measured_from": str(frame["started_at"].min()),
            "measured_to": str(frame["started_at"].max()),
            **(extent if samples.is_partial else {}),
        },
        samples=samples.as_if_whole() if partial else samples,
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
        mtp_window=study.window_word,
        victims=session.victims,
        vram_budget_bytes=session.vram_budget,
        context=session.context,
    )


def usage_words(study: StudyRecord, table: PolicyTable, table_path: str) -> str | None:
    """Return the line that uses a study's table, None where it takes no ring but the default."""
    adopted = any(entry.verdict == "better" for entry in table.entries)
    return "use it: " + usage_line(study, table_path) if adopted else None


def usage_line(study: StudyRecord, table_path: str) -> str:
    """Return the command that generates under the study's conditions with its table.

    What the session takes from the table by itself is not in it.
    """
    plan = study.read_plan()
    session = plan.session
    words = ["--kv-ring-policy", "learned", "--kv-ring-table", table_path]
    if plan.model != "bundled":
        words += ["--model", plan.model]
    if "on" not in plan.grid.modes:
        words += ["--spec", "0"]
    if session.select != "0":
        words += ["--kv-select", session.select]
    if session.page != PAGE_CELLS:
        words += ["--kv-page", str(session.page)]
    if session.vram_budget is not None:
        words += ["--vram-budget", str(session.vram_budget)]
    if session.context != "own":
        words += ["--max-context", str(session.context)]
    seed = (plan.passages.search + plan.passages.fresh)[-1]
    words += ["--passage", f"{plan.grid.tiers[-1]}:{seed}"]
    return "strata generate " + shlex.join(words)
