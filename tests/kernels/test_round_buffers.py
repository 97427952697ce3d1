"""Rounds take no memory: every tensor that they need is laid out when the session is created."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from strata.arena import Arena
from strata.captured import CapturedEngine
from strata.config import KvConfig, Prefetch, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.experts.cache import PooledExperts
from strata.kernels import device as kernel_device
from strata.lm import LanguageModel, bundled_model_path, load_model
from strata.round_buffers import allocate, round_buffers
from strata.sampling import Sampler
from strata.session import Session, create_session
from tests.conftest import TINY, prompt_of

pytest.importorskip("triton")

CELLS, NEW = 90, 24


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    """Return the stand-in model on the CPU with weights that kernels can read."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    return load_model(TINY, "cpu")


READINGS: list[dict[str, Any]] = [
    {"resident_cells": 0},
    {"resident_cells": 32},
    {"resident_cells": 40, "selection": Selection(cells=40), "victims": "clock"},
    {"resident_cells": 40, "selection": Selection(cells=40), "victims": "lrfu"},
]


def interpreting() -> bool:
    """Return whether the caller is Triton's interpreter, which copies what it is given."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if "triton/runtime" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


class Taken(TorchDispatchMode):
    """Count the bytes of tensors that operations return in memory of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[str, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if interpreting():
            return out
        given = {
            t.untyped_storage().data_ptr()
            for t in tree_leaves((args, kwargs or {}))
            if isinstance(t, torch.Tensor)
        }
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in given:
                self.taken.append((str(func), t.untyped_storage().nbytes()))
        return out


def open_session(
    model: LanguageModel,
    reading: dict[str, Any],
    *,
    drafts: int,
    experts: bool,
    **spec: Any,
) -> Session:
    config = SessionConfig(
        kv=KvConfig(page_cells=4, **reading),
        spec=SpecConfig(drafts=drafts, window_cells=16, **spec),
        vram_budget_bytes=256 << 20 if experts else None,
    )
    return create_session(model, config, prompt_cells=CELLS, max_new=NEW, environ={})


@pytest.mark.parametrize(
    ("reading", "experts", "min_p", "prefetch"),
    [
        (READINGS[0], False, 0.3, "all"),
        (READINGS[1], True, 0.0, "none"),
        (READINGS[2], False, 0.0, "all"),
        (READINGS[3], True, 0.3, "none"),
        (READINGS[3], True, 0.3, "all"),
    ],
)
def test_a_phase_takes_no_memory(
    plain: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    reading: dict[str, Any],
    experts: bool,
    min_p: float,
    prefetch: Prefetch,
) -> None:
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled where there is a device")
    drafts = 1
    session = open_session(plain, reading, drafts=drafts, experts=experts)
    session.prefill(prompt_of(plain, CELLS))
    monkeypatch.setattr(kernel_device, "has_kernels", lambda tensor: True)
    e = session.engine
    few = PooledExperts(plain.weights.experts, 6, Arena(1 << 20, plain.device))
    pool = few if experts else e.experts
    engine = CapturedEngine(e.model, e.kv, pool, e.drafter, prefetch=prefetch)
    engine._prompt_hidden, engine._prompt_cells = e._prompt_hidden, e._prompt_cells
    cuts = {"top_k": 9, "top_p": 0.9, "min_p": 0.01} if min_p == 0 else {}
    sampler = Sampler(SamplingParams(temperature=0.8, seed=3, **cuts))
    engine.first_token(sampler)
    every_page = "selection" not in reading
    with torch.inference_mode(), Taken() as taken:
        engine._round_rows(drafts, min_p, every_page)
    assert taken.taken == []
    assert (engine.kv_counters().prefetched > 0) == (prefetch == "all" and not every_page)
    assert (engine.expert_counters().prefetched > 0) == (prefetch == "all" and experts)


@pytest.mark.parametrize("drafting", [False, True])
@pytest.mark.parametrize("victims", ["clock", "lrfu"])
@pytest.mark.parametrize("select", [0, 40])
def test_rounds_run_in_the_buffers_of_the_table(
    tiny: LanguageModel, victims: Any, select: int, drafting: bool
) -> None:
    reading = {"selection": Selection(cells=select), "resident_cells": 40, "victims": victims}
    session = open_session(tiny, reading, drafts=2 * drafting, experts=True)
    kv, experts = session.engine.kv, session.engine.experts
    specs = round_buffers(
        tiny.config,
        kv.geometry,
        rows=3,
        victims=victims,
        window_cells=session.mtp_window_cells if drafting else None,
        expert_slots=experts.slots,
    )
    buffers = allocate(specs, tiny.device)
    e = session.engine
    engine = CapturedEngine(e.model, kv, experts, e.drafter, buffers=buffers)
    engine.prefill(prompt_of(tiny, CELLS))
    engine.first_token(Sampler(SamplingParams()))
    engine.round(engine._draw.sampler, 2 * drafting)
    assert {name: (tuple(t.shape), t.dtype) for name, t in buffers.items()} == specs
    used = {name for name, t in buffers.items() if t.any()}
    assert {"board", "main.residual", "main.cells"} <= used


def small(sizes: list[int]) -> bool:
    return all(abs(size) <= 16 << 10 for size in sizes)


@pytest.mark.gpu
@pytest.mark.parametrize("select", [0, 2_048])
@pytest.mark.parametrize("drafts", [0, 3])
def test_neither_captures_nor_rounds_take_memory_of_a_device(select: int, drafts: int) -> None:
    model, cells, new = load_model(bundled_model_path(), "cuda"), 8_192, 64
    config = SessionConfig(
        kv=KvConfig(resident_cells=4_096, selection=Selection(cells=select)),
        spec=SpecConfig(drafts=drafts),
        vram_budget_bytes=64 << 20,
    )
    params = SamplingParams(max_new=new, ignore_eos=True)
    session = create_session(model, config, prompt_cells=cells, max_new=new, environ={})
    session.prefill(prompt_of(model, cells))
    session.generate(params)
    session.rewind()
    engine, sampler = session.engine, Sampler(params)
    assert isinstance(engine, CapturedEngine)
    engine._phases.clear()
    engine.first_token(sampler)
    torch.cuda.synchronize()
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(4):  # the first captures
        engine.round(sampler, drafts)
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    assert small([torch.cuda.memory_allocated() - before]), "a round keeps memory"
    assert peak - before <= 64 << 10, "a round or its capture takes memory"
    assert torch.cuda.memory_reserved() == reserved
    assert sum(session.ledger.values()) <= 64 << 20
