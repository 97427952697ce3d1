"""No size is too odd: every session gives the tokens of the plainest one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata import engine
from strata.captured import CapturedEngine
from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.errors import BudgetError
from strata.lm import LanguageModel
from strata.session import create_session
from tests.conftest import prompt_of

LARGEST = 300


@pytest.fixture(scope="module")
def text(tiny: LanguageModel) -> list[int]:
    return prompt_of(tiny, LARGEST, seed=8)


def run(
    model: LanguageModel,
    ids: list[int],
    params: SamplingParams,
    *,
    captured: bool = False,
    **how: Any,
) -> tuple[list[int], float]:
    """Return tokens and the least distance of two best logits that decided them."""
    kv = {key: how.pop(key) for key in ("resident_cells", "page_cells", "selection", "victims")}
    spec = {key: how.pop(key) for key in ("drafts", "window_cells", "min_p")}
    config = SessionConfig(kv=KvConfig(**kv), spec=SpecConfig(**spec), **how)
    session = create_session(
        model, config, prompt_cells=len(ids), max_new=params.max_new, environ={}
    )
    if captured:
        e = session.engine
        session.engine = CapturedEngine(e.model, e.kv, e.experts, e.drafter)
    session.engine.track_gap = True
    session.prefill(ids)
    done = session.generate(params)
    kv_cache = session.engine.kv
    if not captured:  # its tables live where only kernels write
        kv_cache.residency.check_integrity()
    assert done.kv.lookups == done.kv.hits + done.kv.misses
    assert done.kv.bytes == done.kv.misses * kv_cache.geometry.page_bytes
    assert session.engine.forwards == done.rounds
    assert sum(session.ledger.values()) <= (config.vram_budget_bytes or 1 << 40)
    assert session._arena.used_bytes == session._arena.size_bytes, "the plan is not what was carved"
    assert kv_cache.committed <= len(ids) + params.max_new
    return done.tokens, session.engine.smallest_gap


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    cells=st.sampled_from([1, 2, 15, 16, 17, 31, 32, 63, 64, 65, 128, 250, LARGEST]),
    new=st.sampled_from([1, 2, 9, 17, 40]),
    page=st.sampled_from([1, 2, 3, 5, 7, 16, 64, 100, 1024]),
    select=st.sampled_from(["0", "0", "1", "40", "100", "9999", "depth/1", "depth/3", "depth/999"]),
    resident=st.sampled_from([None, 0, 1, 50, 130, 10_000]),
    victims=st.sampled_from(["clock", "lrfu"]),
    drafts=st.sampled_from([0, 1, 3, 7, "auto"]),
    window=st.sampled_from([None, 0, 1, 2, 30, 10_000]),
    min_p=st.sampled_from([0.0, 0.0, 0.3, 1.0]),
    budget=st.sampled_from([None, None, 0, 300_000, 900_000, 5_000_000]),
    context=st.sampled_from([None, 4_000]),
    temperature=st.sampled_from([0.0, 0.8]),
    chunk=st.sampled_from([512, 48, 7]),
    segment=st.sampled_from([2048, 64, 10]),
    captured=st.booleans(),
)
def test_any_session_gives_the_tokens_of_the_plainest(
    tiny: LanguageModel,
    text: list[int],
    cells: int,
    new: int,
    page: int,
    select: str,
    resident: int | None,
    victims: Any,
    drafts: Any,
    window: int | None,
    min_p: float,
    budget: int | None,
    context: int | None,
    temperature: float,
    chunk: int,
    segment: int,
    captured: bool,
) -> None:
    ids = text[:cells]
    params = SamplingParams(max_new=new, ignore_eos=True, temperature=temperature, seed=cells)
    selection = Selection.parse(select)
    plain = {
        "resident_cells": 0,
        "page_cells": 16 if selection.is_dense else page,
        "selection": selection,
        "victims": "clock",
        "drafts": 0,
        "window_cells": None,
        "min_p": 0.0,
    }
    expected, gap = run(tiny, ids, params, **plain)
    odd = {
        "resident_cells": resident,
        "page_cells": page,
        "selection": selection,
        "victims": victims,
        "drafts": drafts,
        "window_cells": window,
        "min_p": min_p,
        "max_context_cells": context,
    }
    if budget is not None:
        odd["vram_budget_bytes"] = tiny.weights.device_bytes + 70_000 + budget
    chunks = {"PROMPT_CHUNK": {"cpu": chunk}, "PROMPT_SEGMENT": {"cpu": segment}}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in chunks.items():
            patch.setattr(engine, name, value)
        try:
            got, other_gap = run(tiny, ids, params, captured=captured, **odd)
        except BudgetError:
            assert budget is not None
            return
    assert got == expected or min(gap, other_gap) < 1e-5


@pytest.mark.parametrize("page", [3, 5, 100, 1000])
def test_pages_that_do_not_divide_a_prompt_segment(
    tiny: LanguageModel, text: list[int], monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """Hidden states of the prompt, which tokens alone may not tell apart."""
    hidden = {}
    for size, segment in ((16, 2048), (page, 64)):
        monkeypatch.setattr(engine, "PROMPT_CHUNK", {"cpu": 100})
        monkeypatch.setattr(engine, "PROMPT_SEGMENT", {"cpu": segment})
        config = SessionConfig(kv=KvConfig(page_cells=size), spec=SpecConfig(drafts=0))
        session = create_session(tiny, config, prompt_cells=LARGEST, max_new=1, environ={})
        session.prefill(text)
        hidden[size] = session.engine._prompt_hidden
    first, second = hidden.values()
    assert (first - second).abs().max() < 1e-4
