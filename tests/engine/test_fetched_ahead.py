"""What is fetched ahead: where its launches stand in a graph, what it costs, when it is idle."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from strata.arena import Arena
from strata.captured import CapturedEngine, branch
from strata.captured.branch import Branch
from strata.cli.model_ledger import Ask, Ledger
from strata.config import (
    AUTO_WINDOW,
    KvConfig,
    SamplingParams,
    Selection,
    SessionConfig,
    SpecConfig,
)
from strata.experts.cache import PooledExperts
from strata.lm import LanguageModel, bundled_model_path, load_model
from strata.passages import load_passage
from strata.session import Session, create_session
from tests.conftest import prompt_of


class Streams:
    """Streams of a capture by name, what was launched on each, and who waited for whom."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, capturing: bool) -> None:
        self.log: list[str] = []
        self.current = Stream("main", self.log)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        monkeypatch.setattr(torch.cuda, "stream", self.enter)
        monkeypatch.setattr(branch, "_side_stream", lambda _, name: Stream(name, self.log))

    @contextmanager
    def enter(self, stream: Stream) -> Any:
        outer, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = outer

    def launch(self, what: str) -> None:
        self.log.append(f"{self.current.name}: {what}")


class Stream:
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


@pytest.mark.parametrize("capturing", [False, True])
def test_a_branch_forks_a_capture_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capturing: bool
) -> None:
    streams = Streams(monkeypatch, capturing=capturing)
    side = Branch(torch.device("cuda"), "side")
    side.join()
    streams.launch("before")
    with side.fork():
        streams.launch("beside")
    streams.launch("meanwhile")
    side.join()
    side.join()
    streams.launch("behind")
    if capturing:
        assert streams.log == [
            "main: before",
            "side waits for main",
            "side: beside",
            "main: meanwhile",
            "main waits for side",
            "main: behind",
        ]
    else:
        assert streams.log == [f"main: {w}" for w in ("before", "beside", "meanwhile", "behind")]


def test_a_branch_is_open_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Streams(monkeypatch, capturing=True)
    side = Branch(torch.device("cuda"), "side")
    with side.fork():
        pass
    with pytest.raises(AssertionError, match="not joined"), side.fork():
        pass


@pytest.mark.parametrize("name", ["pages", "experts"])
def test_ctrl_c_on_a_side_line_leaves_none_open(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A capture that ends with one open is an error of its own, and so is the next fork."""
    config = SessionConfig(
        kv=KvConfig(resident_cells=112, selection=Selection(cells=96)), spec=SpecConfig(drafts=0)
    )
    session = create_session(tiny, config, prompt_cells=200, max_new=8, environ={})
    e = session.engine
    pool = PooledExperts(tiny.weights.experts, 5, Arena(1 << 20, tiny.device))
    engine = CapturedEngine(e.model, e.kv, pool, e.drafter, prefetch="all")
    session.engine = engine
    session.prefill(prompt_of(tiny, 200))
    streams = Streams(monkeypatch, capturing=True)
    ahead: Any = {"pages": engine._pages, "experts": engine._phase_experts}[name]
    sides: list[Any] = [engine._pages, engine._phase_experts]
    for side in sides:
        side._ahead._branch = Branch(torch.device("cuda"), f"side of {type(side).__name__}")

    def press_ctrl_c(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"strata.captured.prefetch.forecast_{name}", press_ctrl_c)
        assert session.generate(SamplingParams(max_new=8)).stopped == "interrupted"
    assert streams.current.name == "main"
    assert f"main waits for side of {type(ahead).__name__}" in streams.log
    assert not any(side._ahead._branch._open for side in sides)
    session.rewind()
    assert len(session.generate(SamplingParams(max_new=8, ignore_eos=True)).tokens) == 8


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    """Return the bundled model as it would be laid out on a GPU."""
    return Ledger.open(bundled_model_path(), "bfloat16")


@pytest.mark.parametrize("drafts", [0, 3])
def test_what_it_needs_is_part_of_a_budget(ledger: Ledger, drafts: int) -> None:
    budget = 60 << 20
    asked = Ask(
        depth_cells=131_072,
        max_new=64,
        drafts=drafts,
        select="2048",
        page_cells=16,
        window=AUTO_WINDOW,
        budget_bytes=budget,
    )
    plain = dataclasses.replace(ledger.demand(asked), prefetch="none")
    ahead = dataclasses.replace(plain, prefetch="all")
    slots = [demand.most_experts(4_096) for demand in (plain, ahead)]
    assert slots[0] is not None
    assert slots[1] is not None
    assert slots[1] <= slots[0]
    assert ahead.fits(4_096, slots[1])
    specs = [demand.round_buffers(4_096, slots[1]) for demand in (plain, ahead)]
    more = {name for name in specs[1] if name not in specs[0]}
    assert {name.rsplit(".", 1)[0] for name in more} == {"pages.next", "experts.next"}
    assert specs[1]["pages.scores"][0] == (drafts + 6, 8_197)


@pytest.mark.parametrize(
    ("prefetch", "select", "ring", "slots", "phases", "idle"),
    [
        ("none", "0", 64, None, True, ""),
        ("all", "64", 640, None, True, ""),
        ("all", "64", 640, None, False, "PyTorch's own products"),
        ("pages", "0", 640, None, True, "every page is read"),
        ("pages", "64", 8_208, None, True, "is resident"),
        ("experts", "64", 640, None, True, "every expert is on the device"),
        ("experts", "64", 640, 288, True, "every expert is on the device"),
        ("experts", "0", 640, 287, True, ""),
        ("pages", "0", 640, 287, True, "every page is read"),
    ],
)
def test_where_it_has_nothing_to_fetch_it_says_why(
    ledger: Ledger,
    prefetch: Any,
    select: str,
    ring: int,
    slots: int | None,
    phases: bool,
    idle: str,
) -> None:
    asked = Ask(
        depth_cells=8_128,
        max_new=64,
        drafts=0,
        select=select,
        page_cells=16,
        window=AUTO_WINDOW,
        budget_bytes=None,
    )
    demand = dataclasses.replace(ledger.demand(asked), prefetch=prefetch)
    found = demand.prefetch_obstacle(ring, slots, phases=phases)
    assert bool(found) == bool(idle)
    assert idle in found


def test_the_reference_warns_who_asked_by_name(tiny: LanguageModel) -> None:
    config = SessionConfig(spec=SpecConfig(drafts=0))
    session = create_session(tiny, config, prompt_cells=90, max_new=8, environ={})
    assert session.warnings == []
    config = SessionConfig(prefetch="all", spec=SpecConfig(drafts=0))
    session = create_session(tiny, config, prompt_cells=90, max_new=8, environ={})
    (line,) = session.warnings
    assert line == "--prefetch all fetches nothing: rounds run in PyTorch's own products"


def open_bundled(model: LanguageModel, cells: int, prefetch: Any, **knobs: Any) -> Session:
    kv = KvConfig(resident_cells=4_096, selection=Selection(cells=1_024))
    config = SessionConfig(
        kv=kv, spec=SpecConfig(drafts=knobs.pop("drafts", 0)), prefetch=prefetch, **knobs
    )
    session = create_session(model, config, prompt_cells=cells, max_new=64, environ={})
    session.prefill(load_passage(f"{cells}:5", model.tokenizer))
    return session


PARAMS = SamplingParams(max_new=64, ignore_eos=True)


def test_experts_that_are_fetched_ahead_are_not_missed(bundled: LanguageModel) -> None:
    """A router asked one layer early names more than half of what the layer will choose."""
    misses = []
    for prefetch in ("none", "experts"):
        config = SessionConfig(spec=SpecConfig(drafts=0))
        session = create_session(bundled, config, prompt_cells=512, max_new=64, environ={})
        e = session.engine
        pool = PooledExperts(bundled.weights.experts, 96, Arena(96 << 20, bundled.device))
        session.engine = CapturedEngine(e.model, e.kv, pool, e.drafter, prefetch=prefetch)
        session.prefill(prompt_of(bundled, 512))
        done = session.generate(PARAMS)
        misses.append(done.experts.misses)
        counted = done.experts
    assert misses[1] < 0.7 * misses[0]
    assert 0.4 * counted.prefetched < counted.prefetched_used < counted.prefetched


@pytest.mark.gpu
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("budget", [None, 42 << 20])
def test_graphs_fetch_ahead_and_draw_the_same_tokens(budget: int | None, drafts: int) -> None:
    model = load_model(bundled_model_path(), "cuda")
    done = {}
    for name, prefetch, rounds in (
        ("none", "none", "captured"),
        ("graphs", "all", "captured"),
        ("launched", "all", "launched"),
    ):
        session = open_bundled(
            model, 16_384, prefetch, rounds=rounds, drafts=drafts, vram_budget_bytes=budget
        )
        assert session.warnings == []
        first = session.generate(PARAMS)
        for _ in range(20):  # a launch that did not wait would differ now and then
            session.engine.check_integrity()
            session.rewind()
            assert session.generate(PARAMS).tokens == first.tokens
        session.engine.check_integrity()
        done[name] = first
        session.close()
    assert done["graphs"].tokens == done["none"].tokens == done["launched"].tokens
    for name in ("graphs", "launched"):
        assert done[name].kv.prefetched > 0
        assert (done[name].experts.prefetched > 0) == (budget is not None)
    assert done["none"].kv.prefetched == 0
