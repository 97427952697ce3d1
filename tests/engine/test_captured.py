"""Captured rounds against uncaptured ones: same tokens, rounds, drafts and counters.

On a CPU the phases run on the kernels' references and are held against the Engine, which checks
their logic; on a GPU graphs are held against the same phases launch by launch, and both against the
Engine but for near ties (`test_near_ties`).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from strata.arena import Arena
from strata.captured import CapturedEngine, capture_obstacle
from strata.config import KvConfig, Prefetch, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.experts.cache import PooledExperts
from strata.kernels.resolve import MAX_LRFU_SLOTS
from strata.kernels.select import MAX_FUSED_PAGES
from strata.kv.geometry import KvGeometry
from strata.lm import LanguageModel, load_model
from strata.session import Session, create_session
from tests.conftest import TINY, prompt_of

CELLS, NEW = 330, 40


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return load_model(TINY, request.param)


def open_session(
    model: LanguageModel,
    *,
    captured: bool,
    experts: int | None = None,
    prefetch: Prefetch = "none",
    **knobs: Any,
) -> Session:
    kv = {key: knobs.pop(key) for key in ("resident_cells", "victims", "selection") if key in knobs}
    config = SessionConfig(
        kv=KvConfig(**kv),
        spec=SpecConfig(window_cells=48, **knobs),
        rounds="reference",
    )
    session = create_session(model, config, prompt_cells=CELLS, max_new=NEW, environ={})
    e = session.engine
    if experts is not None:
        e.experts = PooledExperts(model.weights.experts, experts, Arena(1 << 20, model.device))
    if captured:
        session.engine = CapturedEngine(e.model, e.kv, e.experts, e.drafter, prefetch=prefetch)
    elif model.device.type == "cuda":  # products of another library nearly tie elsewhere
        session.engine = CapturedEngine(e.model, e.kv, e.experts, e.drafter, capture=False)
    session.prefill(prompt_of(model, CELLS, seed=4))
    return session


DENSE = {"resident_cells": 0}
SMALL = {"resident_cells": 128}
SELECTED = {"selection": Selection(cells=96), "resident_cells": 192}
TIGHT = {"selection": Selection(cells=96), "resident_cells": 1, "victims": "lrfu"}
SHALLOW = {"selection": Selection(cells=352), "resident_cells": 0}
"""A selection that the depth grows past within the run."""


@pytest.mark.parametrize("min_p", [0.0, 0.3])
@pytest.mark.parametrize("captured", [False, True])
def test_refused_drafts_are_made_verified_and_given_back(
    model: LanguageModel, captured: bool, min_p: float
) -> None:
    plain = open_session(model, captured=captured, **SMALL)
    want = plain.generate(SamplingParams(max_new=NEW, ignore_eos=True))
    session = open_session(model, captured=captured, drafts=3, min_p=min_p, **SMALL)
    session.engine.refuse_drafts = True
    for _ in range(2):
        done = session.generate(SamplingParams(max_new=NEW, ignore_eos=True))
        assert done.tokens == want.tokens
        assert done.rounds == NEW - 1
        assert (sum(done.accepted), done.drafted[0]) == (0, NEW - 2)
        session.rewind()
    session.engine.check_integrity()


SAMPLED = {"temperature": 0.9, "top_p": 0.9, "seed": 11}
HOW: dict[Any, dict[str, Any]] = {
    1: SAMPLED,
    3: {"repeat_penalty": 1.3, "repeat_last_n": 30},
    7: SAMPLED,
    "auto": {**SAMPLED, "repeat_penalty": 1.2, "repeat_last_n": -1},
}
"""How sessions of so many drafts sample; others are greedy."""
EVERY = 16
"""The experts of all layers of the stand-in model."""


@pytest.mark.parametrize("experts", [None, 2, 11, EVERY], ids="experts={}".format)
@pytest.mark.parametrize("reading", [DENSE, SMALL, SELECTED, TIGHT, SHALLOW])
@pytest.mark.parametrize("drafts", [0, 1, 3, 7, "auto"])
def test_rounds_are_those_of_the_engine(
    model: LanguageModel, reading: dict[str, Any], experts: int | None, drafts: Any
) -> None:
    params = SamplingParams(max_new=NEW, ignore_eos=True, **HOW.get(drafts, {}))
    plain, captured = (
        open_session(model, captured=on, experts=experts, drafts=drafts, **reading)
        for on in (False, True)
    )
    expected, got = plain.generate(params), captured.generate(params)
    assert got.tokens == expected.tokens
    assert (got.rounds, got.accepted, got.drafted) == (
        expected.rounds,
        expected.accepted,
        expected.drafted,
    )
    assert captured.engine.forwards == got.rounds
    if model.device.type == "cpu":  # a capture's warm-up leaves pages and experts resident
        assert got.kv == expected.kv
        if experts == EVERY:
            assert (got.experts.misses, got.experts.bytes) == (0, 0)
        else:
            assert got.experts == expected.experts
    for session in (plain, captured):
        session.engine.check_integrity()
    captured.rewind()
    assert captured.generate(params).tokens == expected.tokens


def test_a_pool_with_a_slot_for_every_expert_is_filled_once(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("nobody is to be resolved or fetched")

    monkeypatch.setattr("strata.captured.experts.resolve", refuse)
    monkeypatch.setattr("strata.captured.experts.gather_pages", refuse)
    session = open_session(model, captured=True, experts=EVERY, prefetch="all", drafts=0, **SMALL)
    pool = session.engine.experts
    assert isinstance(pool, PooledExperts)
    params = SamplingParams(max_new=8, ignore_eos=True)
    first = session.generate(params)
    session.engine.check_integrity()
    assert torch.equal(pool.pool.cpu(), pool.host.cpu())
    monkeypatch.setattr(PooledExperts, "fill", refuse)
    session.rewind()
    again = session.generate(params)
    assert again.tokens == first.tokens
    routed = again.rounds * model.config.layers * model.config.experts_per_token
    assert (again.experts.lookups, again.experts.hits) == (routed, routed)


AHEAD: list[Prefetch] = ["pages", "experts", "all"]


@pytest.mark.parametrize("prefetch", AHEAD)
@pytest.mark.parametrize("reading", [DENSE, SELECTED, TIGHT, SHALLOW])
@pytest.mark.parametrize(("experts", "drafts"), [(None, 0), (5, 0), (11, 3)])
def test_what_is_fetched_ahead_changes_no_token(
    model: LanguageModel,
    reading: dict[str, Any],
    experts: int | None,
    drafts: int,
    prefetch: Prefetch,
) -> None:
    params = SamplingParams(max_new=NEW, ignore_eos=True)
    knobs = {"captured": True, "experts": experts, "drafts": drafts, **reading}
    plain = open_session(model, **knobs)
    session = open_session(model, prefetch=prefetch, **knobs)
    expected = plain.generate(params)
    for _ in range(2):
        got = session.generate(params)
        session.engine.check_integrity()
        assert got.tokens == expected.tokens
        assert (got.rounds, got.accepted) == (expected.rounds, expected.accepted)
        assert (got.kv.lookups, got.experts.lookups) == (
            expected.kv.lookups,
            expected.experts.lookups,
        )
        session.rewind()
    # A short context has its selection and nothing else; a shallow one reads every page at first.
    pages = prefetch != "experts" and reading is SELECTED
    assert (got.kv.prefetched > 0) >= pages
    assert (got.experts.prefetched > 0) >= (prefetch != "pages" and experts is not None)
    assert got.kv.prefetched_used <= got.kv.prefetched
    if reading is DENSE or prefetch == "experts":
        assert got.kv.prefetched == 0
        assert got.kv == expected.kv or model.device.type == "cuda"


def test_an_early_stop_never_changes_a_token(model: LanguageModel) -> None:
    params = SamplingParams(max_new=NEW, ignore_eos=True)
    sessions = [
        open_session(model, captured=on, drafts=3, min_p=0.5, **DENSE) for on in (False, True)
    ]
    plain, captured = (session.generate(params) for session in sessions)
    assert captured.tokens == plain.tokens
    assert captured.drafted == plain.drafted
    assert captured.drafted[0] < captured.rounds


def test_a_phase_outlives_a_continuation_that_draws_alike(model: LanguageModel) -> None:
    session = open_session(model, captured=True, drafts=1, **DENSE)
    engine = session.engine
    assert isinstance(engine, CapturedEngine)

    def phases_after(**sampling: Any) -> dict[Any, Any]:
        session.generate(SamplingParams(ignore_eos=True, **sampling))
        session.rewind()
        return dict(engine._phases)

    short = phases_after(max_new=8)
    longer = phases_after(max_new=NEW)
    assert short
    assert all(longer[key] is phase for key, phase in short.items())
    assert phases_after(max_new=8, seed=3, top_k=5) == longer, "greedy draws have neither"
    sampled = phases_after(max_new=8, temperature=0.9)
    assert not set(sampled.values()) & set(longer.values())


DEEPEST = {"pages": MAX_FUSED_PAGES, "slots": MAX_LRFU_SLOTS, "select_pages": 64}


@pytest.mark.parametrize(
    ("shape", "victims", "group", "obstacle"),
    [
        ({}, "lrfu", 16, ""),
        ({}, "clock", 17, "17 heads"),
        ({"head_dim": 256}, "clock", 4, "heads of 256"),
        ({"dtype": torch.float16}, "clock", 4, "float16"),
        ({"pages": MAX_FUSED_PAGES + 1}, "clock", 4, "16385 pages"),
        ({"pages": MAX_FUSED_PAGES + 1, "select_pages": 0}, "clock", 4, ""),
        ({"slots": MAX_LRFU_SLOTS + 1}, "lrfu", 4, "16385 slots"),
        ({"slots": MAX_LRFU_SLOTS + 1}, "clock", 4, ""),
    ],
)
def test_what_no_kernel_serves_is_not_captured(
    shape: dict[str, Any], victims: Any, group: int, obstacle: str
) -> None:
    fixed = {"layers": 2, "kv_heads": 2, "head_dim": 64, "page_cells": 16, "dtype": torch.bfloat16}
    geometry = KvGeometry(**{**fixed, **DEEPEST, **shape})  # type: ignore[arg-type]
    found = capture_obstacle(geometry, victims, group)
    assert obstacle in found
    assert bool(obstacle) == bool(found)
