"""A parked prompt restored into another session is the prompt itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.errors import UsageError
from strata.lm import LanguageModel
from strata.session import Session, create_session
from tests.conftest import prompt_of

NEW, LARGEST = 20, 1_100
PARAMS = SamplingParams(max_new=NEW, ignore_eos=True, temperature=0.5, seed=4)


@pytest.fixture(scope="module")
def text(tiny: LanguageModel) -> list[int]:
    return prompt_of(tiny, LARGEST, seed=8)


def open_session(model: LanguageModel, cells: int, *, drafts: int = 0, **how: Any) -> Session:
    config = SessionConfig(
        kv=KvConfig(
            resident_cells=how.get("ring", 0),
            page_cells=how.get("page", 16),
            selection=how.get("selection", Selection()),
        ),
        spec=SpecConfig(drafts=drafts, window_cells=how.get("window")),
    )
    return create_session(model, config, prompt_cells=cells, max_new=NEW, environ={})


shapes = st.fixed_dictionaries(
    {
        "ring": st.sampled_from([0, 1, 130]),
        "page": st.sampled_from([1, 3, 16, 64]),
        "window": st.sampled_from([None, 0, 1, 30]),
        "drafts": st.sampled_from([0, 3]),
    }
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    cells=st.sampled_from([1, 2, 16, 17, 128, 300, 513, LARGEST]),
    source=shapes,
    target=shapes,
    used=st.booleans(),
    selection=st.sampled_from([Selection(), Selection(cells=96)]),
)
def test_restored_is_prefilled(
    tiny: LanguageModel,
    text: list[int],
    cells: int,
    source: dict[str, Any],
    target: dict[str, Any],
    used: bool,
    selection: Selection,
) -> None:
    """Tokens, rounds, acceptance, hits and misses, whether or not the source has gone on since."""
    first = open_session(tiny, cells, **(source | {"drafts": 1}))
    first.prefill(text[:cells])
    if used:
        first.generate(PARAMS)
        first.rewind()
    parked = first.park()
    first.generate(PARAMS)
    first.close()
    results = []
    for start in ("restore", "prefill"):
        session = open_session(tiny, cells, selection=selection, **target)
        if start == "restore":
            session.restore(parked)
        else:
            session.prefill(text[:cells])
        for _ in range(2):
            done = session.generate(PARAMS)
            results.append((done.tokens, done.rounds, done.accepted, str(done.kv)))
            session.rewind()
        session.engine.kv.residency.check_integrity()
    assert all(result == results[0] for result in results)


def test_what_cannot_be_restored_is_refused(tiny: LanguageModel, text: list[int]) -> None:
    plain = open_session(tiny, 100)
    plain.prefill(text[:100])
    parked = plain.park()
    with pytest.raises(UsageError, match="did not draft"):
        open_session(tiny, 100, drafts=1).restore(parked)
    with pytest.raises(UsageError, match="exceed"):
        open_session(tiny, 30).restore(parked)
    with pytest.raises(UsageError, match="parked by model 0000"):
        open_session(tiny, 100).restore(replace(parked, model_hash="0" * 64))
    for start in (lambda: plain.restore(parked), lambda: plain.prefill(text[:10])):
        with pytest.raises(RuntimeError, match="this one holds 100 cells"):
            start()
    with pytest.raises(RuntimeError, match="rewind follows"):
        open_session(tiny, 100).rewind()
    with pytest.raises(UsageError, match="at least one token"):
        open_session(tiny, 100).prefill([])
    plain.generate(PARAMS)
    with pytest.raises(RuntimeError, match="follows prefill or rewind"):
        plain.park()
    with pytest.raises(RuntimeError, match="follows prefill or rewind"):
        open_session(tiny, 100).park()
