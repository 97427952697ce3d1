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
plan and never from the numbers; the entry says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from strata.models.frame import SPLITS, pair_table, passage_means
from strata.models.guards import edge_objection, failure_objection
from strata.models.inference import Sample, holm_steps, mean_bounds, mean_p_value

MIN_FRESH_PASSAGES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The decision rule of a plan."""

    margin_ratio: float = 0.01
    """A gain below this is not worth a change; also the half width of "equivalent"."""
    alpha: float = 0.05
    """The chance, over the whole table, of adopting a ring that does not clear the margin."""
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
    harmless: bool = False
    """Whether the best ring is shown to lose less than the margin, or only the default was run."""


def decide(frame: pd.DataFrame, rule: Rule, default_ring_cells: int) -> list[Entry]:
    """Return one entry for each (tier, mode) in `frame`, the default ring unless proven better.

    Raises UsageError when the frame is not usable.
    """
    return decide_pairs(pair_table(frame), rule, default_ring_cells)


def decide_pairs(pairs: pd.DataFrame, rule: Rule, default_ring_cells: int) -> list[Entry]:
    """Return what `decide` does, from pairs (`strata.models.frame.pair_table`)."""
    candidates, note = judge(pairs, rule)
    entries = []
    for (tier_cells, mode), group in pairs.groupby(["tier_cells", "mode"], sort=True):
        mine = [c for c in candidates if (c.tier_cells, c.mode) == (tier_cells, mode)]
        wrong = (group["kind"] == "wrong output").any()
        why = note if mine else _silence(group, default_ring_cells)
        entry = _entry(int(tier_cells), str(mode), mine, wrong, default_ring_cells, why)
        harmless = _is_harmless(entry, group, default_ring_cells, rule)
        entries.append(replace(entry, harmless=harmless))
    return _together(entries, default_ring_cells) if rule.no_regression else entries


def judge(pairs: pd.DataFrame, rule: Rule) -> tuple[list[Candidate], str]:
    """Return the tested candidates with their verdicts, and how they were corrected."""
    means = passage_means(pairs)
    if _has_two_stages(pairs):
        chosen = _chosen_on_search(means)
        means = means[means["split"] == "fresh"]
        tested = [c for c in _gather(means) if (c.tier_cells, c.mode, c.ring_cells) in chosen]
        note = "chosen on search passages, confirmed on fresh ones"
    else:
        tested = _gather(means)
        note = "chosen and tested on the same passages"
    note += f"; Holm over {len(tested)} {'test' if len(tested) == 1 else 'tests'}"
    judged = _test(tested, means, rule)
    return [_guard(c, pairs, means, rule) for c in judged], note


def judge_means(means: pd.DataFrame, rule: Rule) -> list[Candidate]:
    """Return a verdict for each (tier, mode, ring) of passage means, Holm over all of them."""
    return _test(_gather(means), means, rule)


def chosen_rings(frame: pd.DataFrame) -> dict[tuple[int, str], int]:
    """Return the ring of each (tier, mode) that is to be confirmed: the best on search passages.

    A (tier, mode) where no ring ran without failing is left out. Raises UsageError when the frame
    is not usable.
    """
    chosen = _chosen_on_search(passage_means(pair_table(frame)))
    return {(tier_cells, mode): ring_cells for tier_cells, mode, ring_cells in chosen}


def _has_two_stages(pairs: pd.DataFrame) -> bool:
    """Return whether every tier was planned with a search and enough fresh passages.

    The default ring beside itself is no evidence for any ring, so it does not count, nor does a
    tier where no ring came through the search.
    """
    rings = pairs[pairs["ring_cells"] != pairs["default_ring_cells"]]
    searched = rings[(rings["split"] == "search") & (rings["kind"] == "ok")]
    rings = rings[rings["tier_cells"].isin(searched["tier_cells"])]
    planned = rings.groupby(["tier_cells", "split"])["passage"].nunique().unstack(fill_value=0)
    if set(planned.columns) != set(SPLITS):
        return False
    return bool((planned["search"] > 0).all() and (planned["fresh"] >= MIN_FRESH_PASSAGES).all())


def _chosen_on_search(means: pd.DataFrame) -> set[tuple[int, str, int]]:
    """Return the ring with the highest mean on the search passages of each (tier, mode)."""
    search = _gather(means[means["split"] == "search"])
    best: dict[tuple[int, str], Candidate] = {}
    for candidate in search:
        key = (candidate.tier_cells, candidate.mode)
        if key not in best or candidate.mean > best[key].mean:
            best[key] = candidate
    return {(c.tier_cells, c.mode, c.ring_cells) for c in best.values()}


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


def _guard(candidate: Candidate, pairs: pd.DataFrame, means: pd.DataFrame, rule: Rule) -> Candidate:
    """Take "better" back from a ring that failed somewhere or loses at an edge of its tier."""
    if candidate.verdict != "better":
        return candidate
    tier, mode, ring = candidate.tier_cells, candidate.mode, candidate.ring_cells
    reason = failure_objection(pairs, tier, mode, ring) or edge_objection(
        means[means["mode"] == mode],
        tier,
        ring,
        margin_ratio=rule.margin_ratio,
        alpha=rule.alpha,
    )
    return replace(candidate, verdict="undecided", note=reason) if reason else candidate


def _entry(
    tier_cells: int,
    mode: str,
    candidates: Sequence[Candidate],
    wrong: bool,
    default_ring_cells: int,
    note: str,
) -> Entry:
    """Fold the candidates of one (tier, mode) into its entry."""
    better = [c for c in candidates if c.verdict == "better"]
    best = max(better or candidates, key=lambda c: c.mean, default=None)
    verdict = _entry_verdict([c.verdict for c in candidates], wrong)
    if best is not None and best.note:
        note = f"{best.note}; {note}"
    if wrong:
        note = f"a pair's arms emitted different tokens or rounds; {note}"
    ring = best.ring_cells if best is not None and verdict == "better" else default_ring_cells
    return Entry(
        tier_cells=tier_cells, mode=mode, ring_cells=ring, verdict=verdict, best=best, note=note
    )


def _silence(group: pd.DataFrame, default_ring_cells: int) -> str:
    """Return why no ring of a (tier, mode) was tested."""
    rivals = group[group["ring_cells"] != default_ring_cells]
    if rivals.empty:
        holds_all = bool(group["default_holds_all"].all())
        return "no other ring was run" + (
            ", for the default ring holds the whole context" if holds_all else ""
        )
    if not (rivals["kind"] == "ok").any():
        return "no run of another ring came through"
    return "no ring came through both search and fresh passages"


def _is_harmless(entry: Entry, group: pd.DataFrame, default_ring_cells: int, rule: Rule) -> bool:
    rivals = group[group["ring_cells"] != default_ring_cells]
    if rivals.empty:
        return True
    if entry.best is None or entry.verdict == "invalid":
        return False
    mine = rivals[rivals["ring_cells"] == entry.best.ring_cells]
    failed = bool((mine["failed_arm"] == "arm").any())
    return not failed and entry.best.floor > float(np.log1p(-rule.margin_ratio))


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
            note=f"{reason}; {entry.note}",
        )
        if entry.verdict == "better"
        else entry
        for entry in entries
    ]


def _entry_verdict(verdicts: Sequence[str], wrong: bool) -> str:
    """Return the entry's word: what is undecided for one ring is undecided for the entry.

    Where no ring was tested there is no evidence, and nothing that more passages would decide.
    Wrong output cannot be blamed on one of the two arms, so it voids the whole entry.
    """
    if wrong:
        return "invalid"
    if "better" in verdicts:
        return "better"
    if not verdicts:
        return "no evidence"
    if "undecided" in verdicts:
        return "undecided"
    return "equivalent" if "equivalent" in verdicts else "worse"
