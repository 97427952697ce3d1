"""Random sessions, used again and again: what is fetched and launched ahead leaves no trace.

A session of the reference engine with everything resident says what is drawn. Two of captured
rounds, one of which looks and fetches ahead, continue the same prompt several times, each of which
ends in another way, up to the last cell that they were created for.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from strata.arena import Arena
from strata.captured import CapturedEngine
from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.experts.cache import PooledExperts
from strata.generation import Generation
from strata.lm import LanguageModel
from strata.session import Session, create_session
from tests.conftest import prompt_of
from tests.contents import check_content

LARGEST = 200
EXPERTS = 16
"""The experts of all layers of the stand-in model, two of which each row asks for in a layer."""
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.01, "seed": 3},
    {"repeat_penalty": 1.5, "repeat_last_n": 9},
    {"temperature": 0.9, "top_k": 40, "seed": 3, "repeat_penalty": 0.8, "repeat_last_n": -1},
]
ENDINGS = ["length", "eos", "stop", "interrupt", "error"]

knobs = st.fixed_dictionaries(
    {
        "cells": st.sampled_from([1, 2, 17, 80, LARGEST]),
        "new": st.sampled_from([1, 3, 9, 30]),
        "page": st.sampled_from([1, 2, 3, 16]),
        "select": st.sampled_from([0, 1, 30, 60, 90, 210]),
        "resident": st.sampled_from([0, 1, 40, 100]),
        "victims": st.sampled_from(["clock", "lrfu"]),
        "drafts": st.sampled_from([0, 1, 3, 7, "auto"]),
        "window": st.sampled_from([0, 1, 5, 48]),
        "min_p": st.sampled_from([0.0, 0.0, 0.3, 1.0]),
        "experts": st.sampled_from([None, 2, 4, 5, EXPERTS - 1, EXPERTS]),
        "prefetch": st.sampled_from(["none", "pages", "experts", "all"]),
        "parked": st.booleans(),
    }
)
uses = st.lists(
    st.tuples(st.sampled_from(ENDINGS), st.sampled_from(SAMPLINGS), st.integers(0, 29)),
    min_size=1,
    max_size=3,
)


def open_session(model: LanguageModel, knob: dict[str, Any], *, captured: bool) -> Session:
    """Return a session without its prompt."""
    config = SessionConfig(
        kv=KvConfig(
            page_cells=knob["page"],
            selection=Selection(cells=knob["select"]),
            resident_cells=knob["resident"] if captured else 0,
            victims=knob["victims"],
        ),
        spec=SpecConfig(drafts=knob["drafts"], window_cells=knob["window"], min_p=knob["min_p"]),
        rounds="reference",
    )
    return create_session(
        model, config, prompt_cells=knob["cells"], max_new=knob["new"], environ={}
    )


def capture(session: Session, knob: dict[str, Any], *, ahead: bool) -> Session:
    """Let the session run captured rounds, which look and fetch ahead or do not."""
    e = session.engine
    if knob["experts"] is not None:
        host = e.model.weights.experts
        e.experts = PooledExperts(host, knob["experts"], Arena(1 << 20, e.model.device))
    prefetch = knob["prefetch"] if ahead else "none"
    session.engine = CapturedEngine(e.model, e.kv, e.experts, e.drafter, prefetch=prefetch)
    session.engine.looks_ahead = ahead
    return session


def continue_once(
    session: Session, full: Generation, params: dict[str, Any], ending: str, at: int
) -> Generation | None:
    """Continue by at most what `full` is, to end about its place `at`; None after an error."""
    at %= len(full.tokens)
    pieces = 0

    def stop_listening(_: str) -> None:
        nonlocal pieces
        pieces += 1
        if pieces == at + 1:
            raise KeyboardInterrupt if ending == "interrupt" else OSError

    tokenizer = session.model.tokenizer
    before = tokenizer.eos_ids
    if ending == "eos":
        tokenizer.eos_ids = (full.tokens[at],)
    stop = (full.text[at : at + 3] or "none",) if ending == "stop" else ()
    how = SamplingParams(ignore_eos=ending != "eos", stop=stop, **params)
    try:
        return session.generate(how, stop_listening if ending in ("interrupt", "error") else None)
    except OSError:
        return None
    finally:
        tokenizer.eos_ids = before


def facts(done: Generation) -> tuple[Any, ...]:
    return done.tokens, done.text, done.stopped, done.rounds, done.accepted, done.drafted


@settings(max_examples=25, derandomize=True, database=None)
@given(knob=knobs, used=uses)
def test_looking_and_fetching_ahead_leave_no_trace(
    tiny: LanguageModel, knob: dict[str, Any], used: list[tuple[str, dict[str, Any], int]]
) -> None:
    plain = open_session(tiny, knob, captured=False)
    now, ahead = (
        capture(open_session(tiny, knob, captured=True), knob, ahead=on) for on in (False, True)
    )
    for session in (plain, now):
        session.prefill(prompt_of(tiny, knob["cells"], seed=4))
    if knob["parked"]:
        ahead.restore(plain.park())
    else:
        ahead.prefill(prompt_of(tiny, knob["cells"], seed=4))
    g = plain.engine.kv.geometry
    for ending, sampling, at in used:
        params = {"max_new": g.pages * g.page_cells - knob["cells"], **sampling}
        full = plain.generate(SamplingParams(ignore_eos=True, **params))
        plain.rewind()
        want, before, got = (
            continue_once(session, full, params, ending, at) for session in (plain, now, ahead)
        )
        for session in (now, ahead):
            check_content(session.engine)
        assert now.engine.kv_counters().lookups == ahead.engine.kv_counters().lookups
        if want is not None and before is not None and got is not None:
            assert facts(got) == facts(before) == facts(want)
            if knob["prefetch"] in ("none", "experts"):
                assert got.kv == before.kv
            for counts in (got.kv, got.experts):
                assert counts.lookups == counts.hits + counts.misses
                assert counts.overflows <= counts.misses
        for session in (plain, now, ahead):
            session.rewind()
        for session in (now, ahead):
            check_content(session.engine)
    for session in (plain, now, ahead):
        session.close()
