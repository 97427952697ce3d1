"""Whole sessions of captured rounds on interpreted kernels give the reference engine's tokens.

The kernels' own tests hold each against its reference; this holds that they fit together: what one
launch writes is what the next one reads, in every order that a round has.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from strata.arena import Arena
from strata.captured import CapturedEngine
from strata.config import KvConfig, Prefetch, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.experts.cache import PooledExperts
from strata.kernels import device
from strata.lm import LanguageModel, load_model
from strata.session import Session, create_session
from tests.conftest import TINY, prompt_of
from tests.contents import check_content

pytest.importorskip("triton")

CELLS, NEW = 60, 5
SAMPLED = {"temperature": 0.8, "seed": 3}
CUT = {**SAMPLED, "top_k": 50, "top_p": 0.9, "min_p": 0.02}
PENALISED = {"repeat_penalty": 1.5, "repeat_last_n": 20}
DENSE = {"resident_cells": 0}
FEW = {"resident_cells": 16, "page_cells": 4}
SELECTED = {"resident_cells": 32, "page_cells": 4, "selection": Selection(cells=20)}


def open_session(
    model: LanguageModel,
    kv: dict[str, Any],
    drafts: int,
    experts: int | None,
    captured: bool,
    prefetch: Prefetch = "none",
) -> Session:
    """Return a session behind its prompt, which plain torch ran."""
    config = SessionConfig(
        kv=KvConfig(**kv), spec=SpecConfig(drafts=drafts, window_cells=16), rounds="reference"
    )
    session = create_session(model, config, prompt_cells=CELLS, max_new=NEW, environ={})
    e = session.engine
    if experts is not None:
        e.experts = PooledExperts(model.weights.experts, experts, Arena(1 << 20, model.device))
    if captured:
        session.engine = CapturedEngine(e.model, e.kv, e.experts, e.drafter, prefetch=prefetch)
    session.prefill(prompt_of(model, CELLS, seed=1))
    return session


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled where there is a device"
)
@pytest.mark.parametrize(
    ("kv", "drafts", "experts", "sampling", "wide"),
    [
        (DENSE, 0, None, SAMPLED, False),
        (FEW, 2, 2, {}, False),
        (FEW, 2, 2, {}, True),
        (SELECTED, 0, None, {}, False),
        (SELECTED, 2, None, SAMPLED, False),
        (SELECTED, 2, None, SAMPLED, True),
        (DENSE, 2, None, CUT, False),
        (DENSE, 2, None, PENALISED, False),
    ],
    ids=[
        "dense",
        "dense drafted pooled",
        "the same in launches for large shapes",
        "selected",
        "selected drafted",
        "selected drafted in launches for large shapes",
        "cut",
        "penalised",
    ],
)
def test_rounds_are_the_reference_engine_s(
    tiny: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    kv: dict[str, Any],
    drafts: int,
    experts: int | None,
    sampling: dict[str, Any],
    wide: bool,
) -> None:
    if wide:
        monkeypatch.setattr("strata.kernels.wide.LEAST_HIDDEN", 1)
    if sampling in (CUT, PENALISED):  # whose kernels read a head that is not packed
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        tiny = load_model(TINY, "cpu")
    params = SamplingParams(max_new=NEW, ignore_eos=True, **sampling)
    expected = open_session(tiny, kv, drafts, experts, captured=False).generate(params)
    session = open_session(tiny, kv, drafts, experts, captured=True)
    with monkeypatch.context() as patch:
        patch.setattr(device, "has_kernels", lambda _: True)
        got = session.generate(params)
    assert got.tokens == expected.tokens
    assert (got.rounds, got.drafted, got.accepted) == (
        expected.rounds,
        expected.drafted,
        expected.accepted,
    )
    assert got.kv == expected.kv
    assert got.experts == expected.experts
    session.engine.check_integrity()


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled where there is a device"
)
@pytest.mark.parametrize(("victims", "experts"), [("clock", 5), ("lrfu", 16)])
def test_what_is_fetched_ahead_is_what_is_read(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch, victims: str, experts: int
) -> None:
    """Sixteen slots hold every expert, which is filled in and never fetched."""
    kv = {**SELECTED, "resident_cells": 24, "page_cells": 2, "victims": victims}
    params = SamplingParams(max_new=NEW, ignore_eos=True)
    expected = open_session(tiny, kv, 2, experts, captured=False).generate(params)
    session = open_session(tiny, kv, 2, experts, captured=True, prefetch="all")
    with monkeypatch.context() as patch:
        patch.setattr(device, "has_kernels", lambda _: True)
        got = session.generate(params)
    assert (got.tokens, got.accepted) == (expected.tokens, expected.accepted)
    assert got.kv.lookups == expected.kv.lookups
    assert got.kv.prefetched > 0
    assert (got.experts.prefetched > 0) == (experts < 16)
    check_content(session.engine)
