"""Whole sessions of captured rounds on interpreted kernels give the reference engine's tokens.

The kernels' own tests hold each against its reference; this holds that they fit together: what one
launch writes is what the next one reads, in every order that a round has.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from strata.captured import CapturedEngine
from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.kernels import device
from strata.lm import LanguageModel, load_model
from strata.session import Session, create_session
from tests.conftest import TINY, prompt_of

pytest.importorskip("triton")

CELLS, NEW = 60, 5
SAMPLED = {"temperature": 0.8, "seed": 3}
CUT = {**SAMPLED, "top_k": 50, "top_p": 0.9, "min_p": 0.02}
DENSE = {"resident_cells": 0}
FEW = {"resident_cells": 16, "page_cells": 4}
SELECTED = {"resident_cells": 32, "page_cells": 4, "selection": Selection(cells=20)}


def open_session(
    model: LanguageModel, kv: dict[str, Any], drafts: int, experts: int | None, captured: bool
) -> Session:
    """Return a session behind its prompt, which plain torch ran."""
    budget = None
    if experts is not None:
        budget = model.weights.device_bytes + 900_000 + experts * model.weights.experts[0].nbytes
    config = SessionConfig(
        kv=KvConfig(**kv),
        spec=SpecConfig(drafts=drafts, window_cells=16),
        vram_budget_bytes=budget,
        rounds="reference",
    )
    session = create_session(model, config, prompt_cells=CELLS, max_new=NEW, environ={})
    e = session.engine
    if captured:
        session.engine = CapturedEngine(e.model, e.kv, e.experts, e.drafter)
    session.prefill(prompt_of(model, CELLS, seed=1))
    return session


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled where there is a device"
)
@pytest.mark.parametrize(
    ("kv", "drafts", "experts", "sampling"),
    [
        (DENSE, 0, None, SAMPLED),
        (FEW, 2, 2, {}),
        (SELECTED, 0, None, {}),
        (SELECTED, 2, None, SAMPLED),
        (DENSE, 2, None, CUT),
    ],
    ids=["dense", "dense drafted pooled", "selected", "selected drafted", "cut"],
)
def test_rounds_are_the_reference_engine_s(
    tiny: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    kv: dict[str, Any],
    drafts: int,
    experts: int | None,
    sampling: dict[str, Any],
) -> None:
    if sampling == CUT:  # whose kernel reads a head that is not packed
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
