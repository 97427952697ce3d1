"""A penalty of seen tokens in whole sessions: drafts, rounds, rings and rewinds leave no trace.

Held: greedy tokens are those of `transformers` with its penalty; captured rounds give the plain
engine's; a penalty of 1 or a look back on nothing changes nothing.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from strata.captured import CapturedEngine
from strata.captured import engine as captured_engine
from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.lm import LanguageModel
from strata.session import Session, create_session
from tests.conftest import prompt_of
from tests.engine.test_captured_warm_up import WarmedPhase

os.environ.setdefault("HF_HUB_OFFLINE", "1")

CELLS, NEW = 90, 24
EVERY = {"repeat_penalty": 1.4, "repeat_last_n": -1}
SAMPLED = {"temperature": 0.9, "top_k": 40, "seed": 5}
HOW: list[dict[str, Any]] = [
    EVERY,
    {"repeat_penalty": 1.8, "repeat_last_n": 3},
    {"repeat_penalty": 0.7, "repeat_last_n": 64, **SAMPLED},
    {"repeat_penalty": 0.4, "repeat_last_n": 1},
]


def open_session(model: LanguageModel, *, captured: bool = False, **knobs: Any) -> Session:
    kv = {name: knobs.pop(name) for name in ("resident_cells", "selection") if name in knobs}
    config = SessionConfig(
        kv=KvConfig(page_cells=4, **kv), spec=SpecConfig(**knobs), rounds="reference"
    )
    session = create_session(model, config, prompt_cells=CELLS, max_new=NEW, environ={})
    if captured:
        e = session.engine
        session.engine = CapturedEngine(e.model, e.kv, e.experts, e.drafter)
    return session


def tokens_of(session: Session, **params: Any) -> list[int]:
    done = session.generate(SamplingParams(max_new=NEW, ignore_eos=True, **params)).tokens
    session.rewind()
    return done


@pytest.mark.parametrize("penalty", [1.4, 0.8])
def test_greedy_tokens_are_those_of_transformers(tiny: LanguageModel, penalty: float) -> None:
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(tiny.folder, dtype=torch.float32).eval()
    ids = prompt_of(tiny, CELLS)
    with torch.no_grad():
        expected = reference.generate(
            torch.tensor([ids]),
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            do_sample=False,
            repetition_penalty=penalty,
            eos_token_id=-1,
            pad_token_id=0,
        )[0, CELLS:].tolist()
    session = open_session(tiny, drafts=2)
    session.prefill(ids)
    assert tokens_of(session, repeat_penalty=penalty, repeat_last_n=-1) == expected
    assert tokens_of(session) != expected


@pytest.mark.parametrize("how", HOW, ids=str)
def test_neither_drafts_nor_rounds_nor_rings_show(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any]
) -> None:
    monkeypatch.setattr(captured_engine, "Phase", WarmedPhase)
    ids = prompt_of(tiny, CELLS)
    plain = open_session(tiny, drafts=0)
    plain.prefill(ids)
    parked, want = plain.park(), tokens_of(plain, **how)
    assert want != tokens_of(plain, **{k: v for k, v in how.items() if k in SAMPLED})
    for knobs in (
        {"drafts": 3, "resident_cells": 40},
        {"captured": True, "drafts": 7, "window_cells": 5, "min_p": 0.2},
        {"captured": True, "drafts": 0, "resident_cells": 0},
        {"captured": True, "drafts": 1, "selection": Selection(cells=2 * CELLS)},
    ):
        session = open_session(tiny, **knobs)
        if knobs["drafts"]:
            session.prefill(ids)
        else:
            session.restore(parked)
        assert tokens_of(session, **how) == want
        assert tokens_of(session, repeat_penalty=0.5) != want
        assert tokens_of(session, **how) == want


def test_rounds_of_both_engines_draft_alike(tiny: LanguageModel) -> None:
    """The drafter has the penalty too, so that more of its drafts hold."""
    runs = []
    for captured in (False, True):
        session = open_session(tiny, captured=captured, drafts=3)
        session.prefill(prompt_of(tiny, CELLS))
        done = session.generate(SamplingParams(max_new=NEW, ignore_eos=True, **EVERY))
        runs.append((done.tokens, done.rounds, done.accepted, done.drafted))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("off", [{"repeat_penalty": 1.0}, {**EVERY, "repeat_last_n": 0}])
def test_what_is_off_changes_nothing(tiny: LanguageModel, off: dict[str, Any]) -> None:
    session = open_session(tiny, captured=True, drafts=1)
    session.prefill(prompt_of(tiny, CELLS))
    engine = session.engine
    assert isinstance(engine, CapturedEngine)
    want, phases = tokens_of(session), dict(engine._phases)
    assert tokens_of(session, **off) == want
    assert engine._phases == phases, "the same launches"
