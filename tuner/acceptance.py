"""Measure acceptance alone on someone's own prompts, and hold it against a study's costs.

What drafting costs belongs to the machine, what it gives to the text. So a new workload needs no
new sweep: its prompts are continued once each, drafts are counted and no time is taken. A prompt
is one sample; repeating it would tell nothing new.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from strata.config import (
    AUTO_WINDOW,
    KvConfig,
    SamplingParams,
    Selection,
    SessionConfig,
    SpecConfig,
)
from strata.device import every_core
from strata.errors import StoreError, UsageError
from strata.lm import LanguageModel
from strata.session import create_session
from strata.tuner.arms import DECODE
from strata.tuner.costs import Estimate, draft_prices
from strata.tuner.record import TrialRecord
from strata.tuner.store import TrialStore
from strata.tuner.study import StudyRecord
from strata.tuner.workload import Conditions, PromptCount, Workload

FEWEST_ROUNDS = 8
"""A continuation of fewer rounds, ended early by the model, is left out: its rates mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthRates:
    """Acceptance at one range of depths: rates by draft position, and accepted drafts a round."""

    upper_cells: int
    rates: list[Estimate]
    accepted: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a study says that drafting costs: accepted drafts a round at which it breaks even."""

    tier_cells: int
    ring_cells: int
    break_even: float
    source: str


def read_prompts(places: Sequence[Path]) -> list[tuple[str, str]]:
    """Return (name, text) of every prompt: files, and the files of folders, each one prompt.

    Raises UsageError for what cannot be read, is no UTF-8 text or is empty.
    """
    files: list[Path] = []
    for place in places:
        if place.is_dir():
            here = sorted(one for one in place.rglob("*") if one.is_file())
            files += [one for one in here if not one.name.startswith(".")]
        else:
            files.append(place)
    if not files:
        raise UsageError("no prompt: name text files, or folders that hold some")
    found = []
    for file in files:
        try:
            text = file.read_bytes().decode("utf-8")  # as it is: read_text makes CRLF into LF
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise UsageError(f"prompt {file} cannot be read: {reason}") from None
        if not text.strip():
            raise UsageError(f"prompt {file} is empty")
        found.append((str(file), text))
    return found


def count_drafts(
    model: LanguageModel,
    prompts: Sequence[tuple[str, str]],
    how: Conditions,
    *,
    on_skip: Callable[[str], None] = lambda words: None,
) -> Iterator[PromptCount]:
    """Continue each prompt once and yield what became of its drafts; `on_skip` hears of the rest.

    A prompt that is too long for the model is cut at its end. Raises UsageError for a model that
    cannot draft.
    """
    if not model.has_mtp:
        raise UsageError(f"{model.folder} has no MTP layer to draft with")
    if how.window_cells is None and how.auto_window != AUTO_WINDOW.word:
        raise UsageError(
            f"the study's drafter read {how.auto_window} (auto is the ring), and this engine's "
            f"reads {AUTO_WINDOW.word}; measure the study again"
        )
    room = model.config.max_positions - how.max_new
    for name, text in prompts:
        ids = model.tokenizer.encode(text)
        if len(ids) > room:
            on_skip(f"{name}: its first {room} of {len(ids)} cells are taken")
            ids = ids[:room]
        config = SessionConfig(
            kv=KvConfig(
                resident_cells=how.ring_cells,
                selection=Selection.parse(how.select),
                page_cells=how.page_cells,
            ),
            spec=SpecConfig(drafts=how.drafts, window_cells=how.window_cells),
            policy="fixed",
        )
        session = create_session(
            model, config, prompt_cells=len(ids), max_new=how.max_new, environ={}
        )
        try:
            with every_core():
                session.prefill(ids)
            params = SamplingParams(max_new=how.max_new, temperature=how.temperature)
            done = session.generate(params).whole()
        finally:
            session.close()
        if done.rounds < FEWEST_ROUNDS:
            on_skip(f"{name}: left out, the model ended after {done.rounds} rounds")
            continue
        yield PromptCount(
            name=name,
            depth_cells=len(ids),
            rounds=done.rounds,
            tokens=len(done.tokens),
            tries=list(done.tried),
            hits=list(done.accepted),
        )


def by_depth(counts: Sequence[PromptCount], tiers: Sequence[int] = ()) -> list[DepthRates]:
    """Return acceptance by depth: up to each of `tiers`, past them up to each power of two."""
    grouped: dict[int, list[PromptCount]] = {}
    for one in counts:
        power = 1 << (one.depth_cells - 1).bit_length()
        upper = next((tier for tier in sorted(tiers) if one.depth_cells <= tier), power)
        grouped.setdefault(upper, []).append(one)
    found = []
    for upper, mine in sorted(grouped.items()):
        rates = []
        for place in range(max(len(one.tries) for one in mine)):
            tried = [one for one in mine if len(one.tries) > place and one.tries[place]]
            if tried:
                shares = [one.hits[place] / one.tries[place] for one in tried]
                rates.append(Estimate.of_counts(shares, sum(one.tries[place] for one in tried)))
        most = max(len(one.tries) for one in mine)
        rounds = sum(one.rounds for one in mine)
        accepted = Estimate.of_counts((one.accepted for one in mine), rounds, max(1, most))
        found.append(DepthRates(upper_cells=upper, rates=rates, accepted=accepted))
    return found


def conditions_of(study: StudyRecord, *, temperature: float, max_new: int) -> Conditions:
    """Return how the drafter ran in a study."""
    session = study.read_plan().session
    return Conditions(
        drafts=session.drafts,
        window_cells=None if session.mtp_window == "auto" else session.mtp_window,
        ring_cells=study.default_ring_cells,
        select=session.select,
        page_cells=session.page,
        temperature=temperature,
        max_new=max_new,
        auto_window=study.auto_window,
    )


def refuse_other_way(workload: Workload, study: StudyRecord) -> None:
    """Raise StoreError where a workload was not drafted for as a study drafts."""
    if workload.model_hash != study.model_hash:
        raise StoreError(
            f"workload {workload.workload} is of model {workload.model_hash[:12]}, and study "
            f"{study.study} of {study.model_hash[:12]}"
        )
    here = workload.conditions
    there = conditions_of(study, temperature=here.temperature, max_new=here.max_new)
    if there.window_cells is not None:  # else the window is held within the ring
        there = replace(there, ring_cells=here.ring_cells, auto_window=here.auto_window)
    differing = [
        f"{name} {getattr(here, name)} and {getattr(there, name)}"
        for name in Conditions.__slots__
        if getattr(here, name) != getattr(there, name)
    ]
    if differing:
        raise StoreError(
            f"workload {workload.workload} and study {study.study} do not draft alike: "
            f"{', '.join(differing)}; count again with --study {study.study}"
        )


def prices_of(store: TrialStore, study: StudyRecord) -> list[Price]:
    """Return what drafting costs by a study: its break-even pairs, else its decoding trials.

    Without break-even pairs a round with the drafter is held against one without on the same tier,
    ring and passages, run at other times; there is nothing where a study ran one mode alone.
    """
    if "break-even" in study.read_plan().measure.purposes:
        return [
            Price(
                tier_cells=one.tier_cells,
                ring_cells=one.ring_cells,
                break_even=one.break_even.mean,
                source="break-even pairs",
            )
            for one in draft_prices(store, study)
        ]
    times: dict[tuple[int, int, str], list[float]] = {}
    for run in store.trials(study.study):
        if _is_timed(run):
            place = (run.tier_cells, run.ring_cells, run.mode)
            times.setdefault(place, []).append(-math.log(run.rounds_per_s or math.nan))
    found = []
    for tier, ring in sorted({(tier, ring) for tier, ring, _ in times}):
        plain, drafting = times.get((tier, ring, "off")), times.get((tier, ring, "on"))
        if plain and drafting:
            ratio = sum(drafting) / len(drafting) - sum(plain) / len(plain)
            price = Price(
                tier_cells=tier,
                ring_cells=ring,
                break_even=math.expm1(ratio),
                source="decoding trials",
            )
            found.append(price)
    return found


def _is_timed(run: TrialRecord) -> bool:
    return run.kind == "ok" and run.purpose == DECODE and bool(run.rounds_per_s)
