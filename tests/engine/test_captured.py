"""Captured rounds against the reference engine: same tokens, rounds, drafts and counters.

On a CPU the phases run uncaptured, which holds their logic; on a GPU they are graphs.
"""

from __future__ import annotations

from typing import Any

import pytest

from strata.captured import CapturedEngine, supports
from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.lm import LanguageModel, load_model
from strata.session import Session, create_session
from tests.conftest import TINY, prompt_of

CELLS, NEW = 330, 40


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return load_model(TINY, request.param)


def open_session(model: LanguageModel, *, captured: bool, ring: int, **spec: Any) -> Session:
    config = SessionConfig(kv=KvConfig(resident_cells=ring), spec=SpecConfig(**spec), graphs=False)
    session = create_session(model, config, prompt_cells=CELLS, max_new=NEW, environ={})
    if captured:
        e = session.engine
        session.engine = CapturedEngine(e.model, e.kv, e.experts, e.drafter)
    session.prefill(prompt_of(model, CELLS, seed=4))
    return session


@pytest.mark.parametrize("ring", [0, 128])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.9, "seed": 11}])
@pytest.mark.parametrize("drafts", [0, 1, 3, 7, "auto"])
def test_rounds_are_those_of_the_engine(
    model: LanguageModel, ring: int, sampling: dict[str, Any], drafts: Any
) -> None:
    params = SamplingParams(max_new=NEW, ignore_eos=True, **sampling)
    plain, captured = (
        open_session(model, captured=on, ring=ring, drafts=drafts, window_cells=48)
        for on in (False, True)
    )
    expected, got = plain.generate(params), captured.generate(params)
    assert got.tokens == expected.tokens
    assert (got.rounds, got.accepted, got.drafted) == (
        expected.rounds,
        expected.accepted,
        expected.drafted,
    )
    assert got.kv == expected.kv
    assert captured.engine.forwards == got.rounds
    captured.rewind()
    assert captured.generate(params).tokens == expected.tokens


def test_an_early_stop_never_changes_a_token(model: LanguageModel) -> None:
    params = SamplingParams(max_new=NEW, ignore_eos=True)
    sessions = [
        open_session(model, captured=on, ring=0, drafts=3, window_cells=48, min_p=0.5)
        for on in (False, True)
    ]
    plain, captured = (session.generate(params) for session in sessions)
    assert captured.tokens == plain.tokens
    assert captured.drafted == plain.drafted
    assert captured.drafted[0] < captured.rounds


def test_sessions_that_are_not_served_say_so(model: LanguageModel) -> None:
    config = SessionConfig(kv=KvConfig(selection=Selection(cells=64)))
    session = create_session(model, config, prompt_cells=CELLS, max_new=NEW, environ={})
    assert not supports(session.engine)
    assert type(session.engine).__name__ == "Engine"
