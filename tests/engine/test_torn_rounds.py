"""A round that breaks off between naming an expert and copying it leaves no wrong weights behind.

Pages are seeded again by a rewind; the pool of experts is kept, so it has to be forgotten then.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

import pytest

from strata.arena import Arena
from strata.captured import CapturedEngine
from strata.config import SamplingParams, SessionConfig, SpecConfig
from strata.experts.cache import PooledExperts
from strata.lm import LanguageModel
from strata.session import Session, create_session
from tests.conftest import prompt_of
from tests.contents import check_content

CELLS, NEW = 120, 24
PARAMS = SamplingParams(max_new=NEW, ignore_eos=True)


def open_session(model: LanguageModel, *, captured: bool) -> Session:
    config = SessionConfig(spec=SpecConfig(drafts=1), rounds="reference")
    session = create_session(model, config, prompt_cells=CELLS, max_new=NEW, environ={})
    e = session.engine
    e.experts = PooledExperts(model.weights.experts, 5, Arena(1 << 20, model.device))
    if captured:
        session.engine = CapturedEngine(e.model, e.kv, e.experts, e.drafter, prefetch="experts")
    session.prefill(prompt_of(model, CELLS, seed=4))
    return session


@pytest.mark.parametrize(
    ("captured", "step"),
    [
        (False, "strata.experts.cache:PooledExperts._from_host"),
        (True, "strata.captured.experts:gather_pages"),
        (True, "strata.captured.prefetch:fetch"),
        (True, "strata.captured.prefetch:publish"),
    ],
)
@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_torn_round_leaves_no_wrong_expert(
    tiny: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    captured: bool,
    step: str,
    at: int,
    error: type[BaseException],
) -> None:
    session = open_session(tiny, captured=captured)
    want = session.generate(PARAMS).tokens
    session.rewind()
    calls, run = 0, resolve_name(step)

    def break_off(*args: Any, **knobs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise error
        return run(*args, **knobs)

    with monkeypatch.context() as patch:
        patch.setattr(step.replace(":", "."), break_off)
        if error is KeyboardInterrupt:
            assert session.generate(PARAMS).stopped == "interrupted"
        else:
            with pytest.raises(error):
                session.generate(PARAMS)
    check_content(session.engine)
    session.rewind()
    assert session.generate(PARAMS).tokens == want
    check_content(session.engine)
