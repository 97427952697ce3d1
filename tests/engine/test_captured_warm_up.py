"""What a capture runs beforehand leaves no trace, also where pages and windows are smallest."""

from __future__ import annotations

from contextlib import nullcontext
from typing import ClassVar

import pytest
import torch

from strata.captured import CapturedEngine, engine, phase
from strata.captured.phase import WARM_UP_RUNS, Phase
from strata.config import KvConfig, SamplingParams, SessionConfig, SpecConfig
from strata.engine import Engine
from strata.lm import LanguageModel
from strata.session import create_session
from tests.conftest import prompt_of

CELLS, NEW = 90, 25


class WarmedPhase(Phase):
    """A phase that runs its warm-up on any device, as a capture does on a GPU."""

    def __init__(self, body, undo, device: torch.device, pool: object, capture: bool) -> None:
        super().__init__(body, undo, device, pool, capture)
        for _ in range(WARM_UP_RUNS):
            body()
            undo()


@pytest.mark.parametrize("drafts", [0, 1, 7])
@pytest.mark.parametrize("window", [1, 5, 0])
def test_a_warm_up_leaves_no_trace(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch, drafts: int, window: int
) -> None:
    monkeypatch.setattr(engine, "Phase", WarmedPhase)
    params = SamplingParams(max_new=NEW, ignore_eos=True)
    config = SessionConfig(
        kv=KvConfig(resident_cells=10, page_cells=1),
        spec=SpecConfig(drafts=drafts, window_cells=window),
        rounds="reference",
    )
    results = []
    for kind in (Engine, CapturedEngine):
        session = create_session(tiny, config, prompt_cells=CELLS, max_new=NEW, environ={})
        e = session.engine
        session.engine = kind(e.model, e.kv, e.experts, e.drafter)
        session.prefill(prompt_of(tiny, CELLS, seed=4))
        # The last rounds are captured at the very end of what the session may reach.
        done = session.generate(params)
        session.engine.kv.residency.check_integrity()
        results.append((done.tokens, done.rounds, done.accepted, str(done.kv)))
    assert results[0] == results[1]


class Stream:
    """A stream that notes who waits for whom."""

    waited: ClassVar[list[tuple[str, str]]] = []

    def __init__(self, name: str) -> None:
        self.name = name

    def wait_stream(self, other: Stream) -> None:
        self.waited.append((self.name, other.name))


def test_after_ctrl_c_nothing_overtakes_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    main, side = Stream("main"), Stream("side")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(phase, "_capture_stream", lambda device: side)
    monkeypatch.setattr(phase, "_know_generator", lambda device: None)

    def press_ctrl_c() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Phase(press_ctrl_c, lambda: None, torch.device("cuda"), None, True)
    assert Stream.waited == [("side", "main"), ("main", "side")]
