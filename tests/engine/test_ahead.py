"""A round launched before the one ahead of it was read changes nothing but when it is launched.

Held: tokens, rounds, drafts and counters are those without, wherever the continuation ends and
whatever was under way then; and the host asks for it only where both ways it has the same part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, product
from typing import Any

import pytest
import torch

from strata.arena import Arena
from strata.captured import CapturedEngine
from strata.captured.engine import Launched
from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.experts.cache import PooledExperts
from strata.generation import Generation
from strata.kernels.accept import ROUNDS_KEPT
from strata.lm import LanguageModel, load_model
from strata.session import Session, create_session
from tests.conftest import TINY, prompt_of

CELLS, NEW = 330, 48
WARM = {"temperature": 1.0, "seed": 5}

READINGS: dict[str, dict[str, Any]] = {
    "dense": {"resident_cells": 0},
    "small": {"resident_cells": 128},
    "selected": {"selection": Selection(cells=96), "resident_cells": 192},
    "lrfu": {"selection": Selection(cells=96), "resident_cells": 1, "victims": "lrfu"},
    "shallow": {"selection": Selection(cells=352), "resident_cells": 0},
    "cell pages": {"resident_cells": 60, "page_cells": 1},
}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return load_model(TINY, request.param)


class Watched(CapturedEngine):
    """An engine that notes how many rounds were under way at each launch."""

    def __init__(self, *args: Any, **knobs: Any) -> None:
        super().__init__(*args, **knobs)
        self.depths: list[int] = []

    def launch(self, *args: Any, **knobs: Any) -> None:
        self.depths.append(len(self._under_way))
        super().launch(*args, **knobs)


def open_session(
    model: LanguageModel,
    reading: str,
    *,
    ahead: bool,
    drafts: Any,
    experts: int | None = None,
    min_p: float = 0.0,
) -> Session:
    config = SessionConfig(
        kv=KvConfig(**READINGS[reading]),
        spec=SpecConfig(window_cells=48, drafts=drafts, min_p=min_p),
        rounds="reference",
    )
    session = create_session(model, config, prompt_cells=CELLS, max_new=NEW, environ={})
    e = session.engine
    if experts is not None:
        e.experts = PooledExperts(model.weights.experts, experts, Arena(1 << 20, model.device))
    session.engine = Watched(e.model, e.kv, e.experts, e.drafter)
    session.engine.looks_ahead = ahead
    session.prefill(prompt_of(model, CELLS, seed=4))
    return session


def depths(session: Session) -> list[int]:
    assert isinstance(session.engine, Watched)
    return session.engine.depths


def facts(done: Generation) -> tuple[Any, ...]:
    return done.tokens, done.stopped, done.text, done.rounds, done.accepted, done.drafted


@contextmanager
def ending_at(model: LanguageModel, token: int) -> Iterator[None]:
    """Let `token` be the one that ends a text."""
    before = model.tokenizer.eos_ids
    model.tokenizer.eos_ids = (token,)
    try:
        yield
    finally:
        model.tokenizer.eos_ids = before


def first_seen_at(tokens: list[int], at: int) -> int:
    """Return the first token from `at` on that was not there before."""
    return next(t for i, t in enumerate(tokens) if i >= at and t not in tokens[:i])


@pytest.mark.parametrize("experts", [None, 16], ids="experts={}".format)
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("drafts", [0, 1, 3, "auto"])
def test_looking_ahead_changes_nothing(
    model: LanguageModel, reading: str, experts: int | None, drafts: Any
) -> None:
    sampling = WARM if drafts in (1, "auto") else {}
    params = SamplingParams(max_new=NEW, ignore_eos=True, **sampling)  # type: ignore[arg-type]
    plain, ahead = (
        open_session(model, reading, ahead=on, drafts=drafts, experts=experts)
        for on in (False, True)
    )
    for _ in range(2):
        want, got = plain.generate(params), ahead.generate(params)
        assert facts(got) == facts(want)
        assert ahead.engine.forwards == plain.engine.forwards
        if model.device.type == "cpu":  # a capture's warm-up leaves pages and experts resident
            assert (got.kv, got.experts) == (want.kv, want.experts)
        assert not any(depths(plain))
        ahead.engine.check_integrity()
        for session in (plain, ahead):
            session.rewind()
    if drafts != "auto":
        assert sum(depths(ahead)) > len(depths(ahead)) / 2
    assert max(depths(ahead)) <= 1


@pytest.mark.parametrize("reading", ["dense", "selected"])
@pytest.mark.parametrize("min_p", [0.0, 0.5])
def test_what_is_sure_or_refused_is_the_same(
    model: LanguageModel, reading: str, min_p: float
) -> None:
    params = SamplingParams(max_new=NEW, ignore_eos=True)
    plain, ahead = (
        open_session(model, reading, ahead=on, drafts=3, min_p=min_p) for on in (False, True)
    )
    assert facts(ahead.generate(params)) == facts(plain.generate(params))
    for session in (plain, ahead):
        session.rewind()
        session.engine.refuse_drafts = True
    assert facts(ahead.generate(params)) == facts(plain.generate(params))
    assert any(depths(ahead))


@pytest.mark.parametrize("experts", [None, 16], ids="experts={}".format)
@pytest.mark.parametrize("reading", ["dense", "selected", "lrfu"])
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("end", ["eos", "stop"])
def test_a_round_that_nobody_wants_leaves_no_trace(
    model: LanguageModel, reading: str, experts: int | None, drafts: int, end: str
) -> None:
    plain, ahead = (
        open_session(model, reading, ahead=on, drafts=drafts, experts=experts)
        for on in (False, True)
    )
    everything = SamplingParams(max_new=NEW, ignore_eos=True, **WARM)  # type: ignore[arg-type]
    full = plain.generate(everything)
    assert facts(ahead.generate(everything)) == facts(full)
    discarded = 0
    for at in (1, 7, 18, 30):
        for session in (plain, ahead):
            session.rewind()
        token = first_seen_at(full.tokens, at)
        stop = (full.text[2 * at : 2 * at + 3],) if end == "stop" else ()
        params = SamplingParams(max_new=NEW, stop=stop, ignore_eos=end == "stop", **WARM)  # type: ignore[arg-type]
        engine = ahead.engine
        begun, read = len(depths(ahead)), engine.forwards
        with ending_at(model, token):
            want, got = plain.generate(params), ahead.generate(params)
        discarded += len(depths(ahead)) - begun - (engine.forwards - read)
        assert want.stopped == end
        assert facts(got) == facts(want)
        assert engine.forwards == plain.engine.forwards
        assert engine.kv.committed == plain.engine.kv.committed
        if model.device.type == "cpu":
            assert got.kv == want.kv
            # What the round brought in stays in the pool, and a rewind leaves it there.
            assert got.experts.lookups == want.experts.lookups
            assert got.experts.lookups == got.experts.hits + got.experts.misses
        engine.check_integrity()
    assert discarded > 0
    ahead.rewind()
    assert facts(ahead.generate(everything)) == facts(full)


@pytest.mark.parametrize("reading", ["dense", "selected"])
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("at", [0, 1, 4, 9])
@pytest.mark.parametrize("where", ["launch", "launched", "collect", "text"])
def test_an_interrupt_leaves_a_session_that_rewinds(
    model: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    reading: str,
    drafts: int,
    at: int,
    where: str,
) -> None:
    session = open_session(model, reading, ahead=True, drafts=drafts)
    params = SamplingParams(max_new=NEW, ignore_eos=True, **WARM)  # type: ignore[arg-type]
    full = session.generate(params)
    session.rewind()
    calls = 0

    def press_ctrl_c(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at + 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if where == "collect":
            collect = session.engine.collect
            patch.setattr(session.engine, "collect", lambda: (press_ctrl_c(), collect())[1])
        elif where != "text":
            run = Watched.launch

            def launch(*args: Any, **knobs: Any) -> None:
                if where == "launch":
                    press_ctrl_c()
                run(session.engine, *args, **knobs)
                if where == "launched":
                    press_ctrl_c()

            patch.setattr(session.engine, "launch", launch)
        done = session.generate(params, press_ctrl_c if where == "text" else None)
    assert done.stopped == "interrupted"
    assert done.tokens == full.tokens[: len(done.tokens)]
    kv = done.kv
    assert (kv.lookups > 0) == (done.rounds > 0)
    assert kv.lookups == kv.hits + kv.misses
    session.rewind()
    again = session.generate(params)
    assert facts(again) == facts(full)
    if model.device.type == "cpu":
        assert again.kv == full.kv
    session.engine.check_integrity()


@pytest.mark.parametrize("reading", ["dense", "selected"])
def test_a_round_under_way_when_a_caller_fails_is_forgotten(
    model: LanguageModel, reading: str
) -> None:
    session = open_session(model, reading, ahead=True, drafts=3)
    engine = session.engine
    assert isinstance(engine, CapturedEngine)
    params = SamplingParams(max_new=NEW, ignore_eos=True)
    full = session.generate(params)
    session.rewind()
    before = engine.kv_counters()

    def fail(_: str) -> None:
        raise OSError("nobody reads")

    with pytest.raises(OSError, match="nobody reads"):
        session.generate(params, fail)
    # The first text is shown with two rounds under way, of which none was read.
    assert not engine._under_way
    if model.device.type == "cpu":
        assert engine.kv_counters() == before
    engine.check_integrity()
    session.rewind()
    assert facts(session.generate(params)) == facts(full)


@pytest.mark.parametrize("reading", ["dense", "small", "selected", "shallow", "cell pages"])
def test_the_host_foresees_what_every_outcome_shares(model: LanguageModel, reading: str) -> None:
    kv = open_session(model, reading, ahead=True, drafts=3).engine.kv
    g, foreseen, begun = kv.geometry, [], []
    windows = product(range(CELLS, CELLS + NEW - 16), (1, 2, 4, 8), (1, 2, 8))
    for born, (committed, under_way, rows) in product((kv.born_pages, g.pages), windows):
        kv.born_pages, parts = born, set()
        for kept in range(under_way + 1):
            kv.committed = committed + kept
            last = (kv.committed + rows - 1) // g.page_cells
            begins = kv.begins_page(rows)
            parts.add((last < g.select_pages, begins and reading == "dense"))
            begun.append(begins)
        kv.committed = committed
        assert kv.foresees(rows, under_way) == (parts in ({(False, False)}, {(True, False)}))
        assert kv.begins_page(rows, under_way) == any(begun[-under_way - 1 :])
        foreseen.append(kv.foresees(rows, under_way))
    assert any(foreseen)
    assert all(foreseen) == (reading in ("small", "selected", "cell pages"))


def test_a_round_whose_phase_is_not_there_is_not_launched_ahead(model: LanguageModel) -> None:
    """One more draft may reach past a selection that the round under way stays within."""
    engine = open_session(model, "shallow", ahead=True, drafts="auto").engine
    assert isinstance(engine, CapturedEngine)
    g = engine.kv.geometry
    engine.kv.committed = g.select_pages * g.page_cells - 1
    engine._under_way.append(Launched(drafts=0, counted=0, every_page=True))
    assert engine.kv.foresees(2, 1)
    phase: Any = None
    engine._phases = {(1, 0.0, True): phase}
    assert not engine.foresees(1, 0.0)
    engine._phases = {(1, 0.0, False): phase}
    assert engine.foresees(1, 0.0)


def test_launch_by_launch_a_gpu_looks_nowhere(model: LanguageModel) -> None:
    e = open_session(model, "dense", ahead=True, drafts=1).engine
    launched = CapturedEngine(e.model, e.kv, e.experts, e.drafter, capture=False)
    assert launched.looks_ahead == (model.device.type == "cpu")
    assert CapturedEngine(e.model, e.kv, e.experts, e.drafter).looks_ahead


class Event:
    """An event that notes when it is recorded and waited for."""

    def __init__(self, name: int, seen: list[tuple[str, int]]) -> None:
        self.name, self.seen = name, seen

    def record(self, stream: object) -> None:
        self.seen.append(("behind", self.name))

    def synchronize(self) -> None:
        self.seen.append(("wait", self.name))


@pytest.mark.parametrize("ahead", [False, True])
def test_the_host_waits_for_the_round_that_it_reads(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    session = open_session(tiny, "dense", ahead=ahead, drafts=1)
    engine, seen = session.engine, []
    assert isinstance(engine, CapturedEngine)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    engine._ended = [Event(n, seen) for n in range(ROUNDS_KEPT)]  # type: ignore[misc]
    for _ in range(2):
        seen.clear()
        rounds = session.generate(SamplingParams(max_new=NEW, ignore_eos=True)).rounds
        for what in ("behind", "wait"):
            names = [name for kind, name in seen if kind == what]
            assert names == [n % ROUNDS_KEPT for n in range(rounds)]
        lead = list(accumulate(1 if kind == "behind" else -1 for kind, _ in seen))
        assert (min(lead), max(lead)) == (0, 2 if ahead else 1)
        session.rewind()
