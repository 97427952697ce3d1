"""Decide, per tier and drafter mode, whether a ring other than the default is worth taking.

The evidence for a ring is one mean log ratio per passage. A ring is *better* when the one-sided
t test of "mean log ratio <= log(1 + margin)" is rejected after Holm's step-down correction
(Holm, Scandinavian Journal of Statistics, 1979) over everything that was tested. The interval
printed for it is taken at its own Holm step, so interval and verdict never disagree. *Equivalent*
is two one-sided tests inside the margin (Schuirmann, 1987), *worse* the mirror image of better.

With search passages and at least three fresh ones a tier, one candidate per (tier, mode) is chosen
on the search passages and tested on the fresh ones alone, and the family is the entries. A
smaller plan cannot afford that (two passages leave one degree of freedom), so every ring is
tested on all passages and the family is all candidates. Which of the two it is follows from the
plan and never from what was measured (`strata.models.samples`); the entry says it.

A verdict needs at least three passages that came through, and the planned number less a quarter
(`LOST_SHARE`). A ring that failed on any passage is refused, unless the default ring failed there
by itself (`strata.models.guards`). While pairs of the plan are still to be measured every entry is
undecided: looking after each passage and stopping at a "better" is another test than this one.

A study of pure noise adopts a ring in at most 5 % of the cases where the noise of a passage is
log-normal, for then the t test is exact. Measured noise has longer tails: drawn from what the
H200 campaigns measured, their rule adopts one in 7.1 and 4.6 % of the studies in the own context
(12 and 24 fresh passages) and in 17.6 and 9.9 % in the shared one
(`experiments/decision_rule/residuals.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from strata.models.frame import pair_table, passage_means
from strata.models.guards import (
    charged,
    edge_objection,
    failure_objection,
    output_objection,
    sample_objection,
    text_objection,
)
from strata.models.inference import Sample, holm_steps, mean_bounds, mean_p_value
from strata.models.samples import Samples, samples_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The decision rule of a plan."""

    margin_ratio: float = 0.01
    """A gain below this is not worth a change; also the half width of "equivalent"."""
    alpha: float = 0.05
    """The chance, over the whole table, of adopting a ring that does not clear the margin, as far
    as a passage's noise is log-normal."""
    no_regression: bool = False
    """Adopt rings together: none, unless each is shown to lose less than the margin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What the measurements say of one ring at one (tier, mode); bounds are log ratios."""

    tier_cells: int
    mode: str
    ring_cells: int
    passages: int
    pairs: int
    mean: float
    p_value: float = 1.0
    level: float = 0.05
    lower: float = -np.inf
    upper: float = np.inf
    floor: float = -np.inf
    """The lower bound at `alpha`, uncorrected: to show every entry harmless needs no correction,
    because all of the tests must hold (Berger, Technometrics, 1982)."""
    verdict: str = "undecided"
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The decision for one (tier, mode): the ring to take and the candidate it rests on."""

    tier_cells: int
    mode: str
    ring_cells: int
    verdict: str
    best: Candidate | None
    note: str
    reason: str = ""
    """Why the figures alone do not decide, part of the note; empty where they do."""
    rivals: int = 0
    """How many other rings were run."""
    harmless: bool = False
    """Whether the best ring is shown to lose less than the margin, or only the default was run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Every entry, the candidates that were tested for them, and how they were corrected."""

    entries: list[Entry]
    candidates: list[Candidate]
    note: str


def decide(
    frame: pd.DataFrame, rule: Rule, default_ring_cells: int, samples: Samples | None = None
) -> list[Entry]:
    """Return one entry for each (tier, mode) in `frame`, the default ring unless proven better.

    `samples` is what the plan asked for; None takes what the frame names. Raises UsageError when
    the frame is not usable.
    """
    return decide_pairs(pair_table(frame), rule, default_ring_cells, samples).entries


def decide_pairs(
    pairs: pd.DataFrame, rule: Rule, default_ring_cells: int, samples: Samples | None = None
) -> Decision:
    """Return what `decide` does and its grounds, from `strata.models.frame.pair_table`."""
    samples = samples or samples_of(pairs)
    candidates, note = judge(pairs, rule, samples)
    entries = []
    for (tier_cells, mode), group in pairs.groupby(["tier_cells", "mode"], sort=True):
        mine = [c for c in candidates if (c.tier_cells, c.mode) == (tier_cells, mode)]
        rivals = group[group["ring_cells"] != default_ring_cells]
        place = Entry(
            tier_cells=int(tier_cells),
            mode=str(mode),
            ring_cells=default_ring_cells,
            verdict="no evidence",
            best=None,
            note=note,
            rivals=int(rivals["ring_cells"].nunique()),
        )
        entry = _filled(place, mine) if mine else _silent(place, group, rivals, samples)
        harmless = rivals.empty or _is_harmless(entry, charged(group), rule, samples)
        entries.append(replace(entry, harmless=harmless))
    if rule.no_regression:
        entries = _together(entries, default_ring_cells)
    return Decision(entries=entries, candidates=candidates, note=note)


def judge(
    pairs: pd.DataFrame, rule: Rule, samples: Samples | None = None
) -> tuple[list[Candidate], str]:
    """Return the tested candidates with their verdicts, and how they were corrected."""
    samples = samples or samples_of(pairs)
    means = passage_means(pairs)
    if samples.has_two_stages:
        chosen = _chosen_on_search(pairs, means)
        means = means[means["split"] == "fresh"]
        tested = [c for c in _gather(means) if chosen.get((c.tier_cells, c.mode)) == c.ring_cells]
        note = "chosen on search passages, confirmed on fresh ones"
    else:
        tested = _gather(means)
        note = "chosen and tested on the same passages"
    note += f"; Holm over {len(tested)} {'test' if len(tested) == 1 else 'tests'}"
    judged = _test(tested, means, rule)
    return [_guard(c, pairs, means, rule, samples) for c in judged], note


def judge_means(means: pd.DataFrame, rule: Rule) -> list[Candidate]:
    """Return a verdict for each (tier, mode, ring) of passage means, Holm over all of them."""
    return _test(_gather(means), means, rule)


def chosen_rings(frame: pd.DataFrame) -> dict[tuple[int, str], int]:
    """Return the ring of each (tier, mode) that is to be confirmed: the best on search passages.

    A (tier, mode) where no ring ran without failing is left out. Raises UsageError when the frame
    is not usable.
    """
    pairs = pair_table(frame)
    return _chosen_on_search(pairs, passage_means(pairs))


def _chosen_on_search(pairs: pd.DataFrame, means: pd.DataFrame) -> dict[tuple[int, str], int]:
    """Return the ring with the highest mean on the search passages of each (tier, mode).

    A ring that failed on one of them cannot be taken any more, so it comes behind all others.
    """
    failed = charged(pairs[pairs["split"] == "search"])
    refused = set(failed[["tier_cells", "mode", "ring_cells"]].itertuples(index=False, name=None))
    best: dict[tuple[int, str], tuple[bool, float, int]] = {}
    for one in _gather(means[means["split"] == "search"]):
        stands = (one.tier_cells, one.mode, one.ring_cells) not in refused
        key = (one.tier_cells, one.mode)
        if key not in best or (stands, one.mean) > best[key][:2]:
            best[key] = (stands, one.mean, one.ring_cells)
    return {place: ring for place, (*_, ring) in best.items()}


def _gather(means: pd.DataFrame) -> list[Candidate]:
    grouped = means.groupby(["tier_cells", "mode", "ring_cells"], sort=True)
    return [
        Candidate(
            tier_cells=int(tier),
            mode=str(mode),
            ring_cells=int(ring),
            passages=len(group),
            pairs=int(group["num_pairs"].sum()),
            mean=float(group["log_ratio"].mean()),
        )
        for (tier, mode, ring), group in grouped
    ]


def _test(tested: Sequence[Candidate], means: pd.DataFrame, rule: Rule) -> list[Candidate]:
    """Fill in p value, Holm step, interval and verdict of each candidate."""
    samples = [_sample(means, c.tier_cells, c.mode, c.ring_cells) for c in tested]
    gain = float(np.log1p(rule.margin_ratio))
    p_values = [mean_p_value(sample, gain) for sample in samples]
    levels, rejected = holm_steps(p_values, rule.alpha)
    judged = []
    for candidate, sample, p_value, level, better in zip(
        tested, samples, p_values, levels, rejected, strict=True
    ):
        lower, upper = mean_bounds(sample, level)
        floor, _ = mean_bounds(sample, rule.alpha)
        filled = replace(
            candidate, p_value=p_value, level=level, lower=lower, upper=upper, floor=floor
        )
        judged.append(replace(filled, verdict=_verdict(filled, better, rule)))
    return judged


def _sample(means: pd.DataFrame, tier_cells: int, mode: str, ring_cells: int) -> Sample:
    rows = (
        (means["tier_cells"] == tier_cells)
        & (means["mode"] == mode)
        & (means["ring_cells"] == ring_cells)
    )
    sample: Sample = means.loc[rows, "log_ratio"].to_numpy(dtype=float)
    return sample


def _verdict(candidate: Candidate, better: bool, rule: Rule) -> str:
    gain, loss = np.log1p(rule.margin_ratio), np.log1p(-rule.margin_ratio)
    if better:
        return "better"
    if candidate.upper < loss:
        return "worse"
    if loss < candidate.lower and candidate.upper < gain:
        return "equivalent"
    return "undecided"


def _guard(
    candidate: Candidate, pairs: pd.DataFrame, means: pd.DataFrame, rule: Rule, samples: Samples
) -> Candidate:
    """Take a verdict back that rests on wrong output, on too little, or on a ring that failed."""
    tier, mode, ring = candidate.tier_cells, candidate.mode, candidate.ring_cells
    here = pairs[(pairs["tier_cells"] == tier) & (pairs["mode"] == mode)]
    if void := output_objection(here) or text_objection(here, samples):
        return replace(candidate, verdict="invalid", note=void)
    if samples.is_partial:
        return replace(candidate, verdict="undecided", note=samples.so_far)
    few = sample_objection(candidate.passages, samples)
    failed = charged(here)
    if failure := failure_objection(failed[failed["ring_cells"] == ring], samples):
        stands = candidate.verdict == "worse" and not few
        return replace(candidate, verdict="worse" if stands else "undecided", note=failure)
    if few:
        return replace(candidate, verdict="undecided", note=few)
    if candidate.verdict == "better" and (
        edge := edge_objection(
            means[means["mode"] == mode],
            tier,
            ring,
            margin_ratio=rule.margin_ratio,
            alpha=rule.alpha,
        )
    ):
        return replace(candidate, verdict="undecided", note=edge)
    return candidate


def _filled(place: Entry, candidates: Sequence[Candidate]) -> Entry:
    """Return the entry of a (tier, mode), folded from its candidates."""
    better = [c for c in candidates if c.verdict == "better"]
    best = max(better or candidates, key=lambda c: c.mean)
    verdict = _entry_verdict([c.verdict for c in candidates])
    return replace(
        place,
        ring_cells=best.ring_cells if verdict == "better" else place.ring_cells,
        verdict=verdict,
        best=best,
        reason=best.note,
        note=f"{best.note}; {place.note}" if best.note else place.note,
    )


def _silent(place: Entry, group: pd.DataFrame, rivals: pd.DataFrame, samples: Samples) -> Entry:
    """Return the entry of a (tier, mode) where no ring was tested, and why none was."""
    if void := output_objection(group):
        return replace(place, verdict="invalid", note=void, reason=void)
    if rivals.empty and not samples.is_partial:
        why = "no other ring was run"
        if group["default_holds_all"].all():
            why += ", for the default ring holds the whole context"
        return replace(place, note=why, reason=why)
    if samples.is_partial:
        why = samples.so_far
        return replace(place, verdict="undecided", note=why, reason=why)
    why = _why_untested(rivals, charged(group), samples)
    return replace(place, note=why, reason=why)


def _why_untested(rivals: pd.DataFrame, failed: pd.DataFrame, samples: Samples) -> str:
    """Return why no ring of a (tier, mode) came to be tested, all of whose pairs were run."""
    if not (rivals["kind"] == "ok").any():
        return "no run of another ring came through"
    chosen = list(_chosen_on_search(rivals, passage_means(rivals)).values())
    if not chosen:
        return "no run of another ring came through on a search passage"
    ring = chosen[0]
    failure = failure_objection(failed[failed["ring_cells"] == ring], samples)
    return f"ring {ring}, chosen on search passages, " + (failure or "ran on no fresh one")


def _is_harmless(entry: Entry, failed: pd.DataFrame, rule: Rule, samples: Samples) -> bool:
    """Return whether an entry's best ring is shown to lose less than the margin."""
    best = entry.best
    if best is None or entry.verdict == "invalid" or samples.is_partial:
        return False
    if sample_objection(best.passages, samples) or (failed["ring_cells"] == best.ring_cells).any():
        return False
    return best.floor > float(np.log1p(-rule.margin_ratio))


def _together(entries: Sequence[Entry], default_ring_cells: int) -> list[Entry]:
    """Take every ring back where one is not shown harmless."""
    places = ", ".join(f"{e.tier_cells} {e.mode}" for e in entries if not e.harmless)
    if not places:
        return list(entries)
    reason = f"rings are adopted together, and none may regress: not shown at {places}"
    return [
        replace(
            entry,
            ring_cells=default_ring_cells,
            verdict="undecided",
            reason=reason,
            note=f"{reason}; {entry.note}",
        )
        if entry.verdict == "better"
        else entry
        for entry in entries
    ]


def _entry_verdict(verdicts: Sequence[str]) -> str:
    """Return the entry's word: what is undecided for one ring is undecided for the entry.

    Wrong output cannot be blamed on one of the two arms, so it voids the whole entry.
    """
    for word in ("invalid", "better", "undecided", "equivalent"):
        if word in verdicts:
            return word
    return "worse"
