"""What the stored trials of a study say: a verdict for every entry, and the numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from strata.errors import StoreError
from strata.models.compare import Change, compare
from strata.models.decide import Candidate, Entry, Rule, decide_pairs
from strata.models.frame import pair_table
from strata.models.samples import Samples
from strata.policy.places import places_by
from strata.tuner.conclude import rule_of
from strata.tuner.evidence import evidence_of, samples_of_study
from strata.tuner.store import TrialStore
from strata.tuner.study import IDENTITY, StudyRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyVerdict:
    """Every entry, the candidates that were tested for them, and how they were corrected."""

    rule: Rule
    entries: list[Entry]
    candidates: list[Candidate]
    note: str
    samples: Samples

    @property
    def is_of_one_rule(self) -> bool:
        """Return whether each entry has one ring to judge, so that the rings are one rule's."""
        return len(self.candidates) <= len(self.entries) and not self.samples.is_partial

    def word_at(self, tier_cells: int, mode: str) -> str:
        """Return the word of one entry as it is shown: what more pairs may change says so.

        A (tier, mode) of which no pair was run has no entry; its word is the part's.
        """
        so_far = self.samples.so_far
        for entry in self.entries:
            if (entry.tier_cells, entry.mode) == (tier_cells, mode):
                waits = so_far and entry.reason == so_far
                return f"{entry.verdict} so far" if waits else entry.verdict
        return "undecided so far" if so_far else "no evidence"

    @property
    def reasons(self) -> list[str]:
        """Return why entries are what they are where figures do not say it, one line a reason."""
        sharing = places_by(
            ((entry.verdict, entry.reason), entry.tier_cells, entry.mode)
            for entry in self.entries
            if entry.reason
        )
        return [
            reason if reason == self.samples.so_far else f"{word} at {places}: {reason}"
            for (word, reason), places in sharing.items()
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What changed from one study to another, by (tier, mode)."""

    rule: Rule
    changes: list[Change]
    one_machine: bool


def verdict_of(store: TrialStore, study: StudyRecord) -> StudyVerdict:
    """Return the verdicts of a study; raise StoreError where it has no trial."""
    rule, samples = rule_of(study), samples_of_study(store, study)
    pairs = pair_table(_trials(store, study))
    found = decide_pairs(pairs, rule, study.default_ring_cells, samples)
    return StudyVerdict(
        rule=rule,
        entries=found.entries,
        candidates=found.candidates,
        note=found.note,
        samples=samples,
    )


def compare_studies(store: TrialStore, first: StudyRecord, second: StudyRecord) -> Comparison:
    """Return what the engine of `second` made of the plan that `first` ran.

    Raises StoreError where more than the engine differs, for then nothing can be blamed on it.
    """
    if first.study == second.study:
        raise StoreError(f"both are study {first.study}; name two that differ in their engine")
    names = [name for name in IDENTITY if name != "engine_version"]
    if differing := [name for name in names if getattr(first, name) != getattr(second, name)]:
        raise StoreError(
            f"studies {first.study} and {second.study} differ in {', '.join(differing)}; only the "
            "engine may"
        )
    before, after = _trials(store, first), _trials(store, second)
    rule = rule_of(first)
    return Comparison(
        rule=rule,
        changes=compare(before, after, rule),
        one_machine=len({*before["worker"], *after["worker"]}) == 1,
    )


def _trials(store: TrialStore, study: StudyRecord) -> pd.DataFrame:
    """Return the checked trials of a study; raise StoreError where it has none."""
    frame = evidence_of(store, study)
    if frame.empty:
        raise StoreError(f"study {study.study} ({study.name}) holds no trial yet")
    return frame
