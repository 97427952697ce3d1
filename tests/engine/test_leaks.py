"""Sessions come and go in one process, and leave neither device nor host memory behind."""

from __future__ import annotations

import gc
import os
import random
import weakref
from typing import Any

import pytest
import torch

from strata.captured import CapturedEngine
from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.lm import LanguageModel, load_model
from strata.session import create_session
from tests.conftest import TINY, prompt_of

MIB = 1 << 20


def use_session(model: LanguageModel, draw: random.Random, text: list[int]) -> None:
    """Create a session of random knobs, use it for a few rounds, close it."""
    cells, new = draw.randint(20, 700), draw.randint(1, 24)
    select = draw.choice([0, 0, 64, 200])
    config = SessionConfig(
        kv=KvConfig(
            resident_cells=draw.choice([0, 1, 96, 400]),
            selection=Selection(cells=select),
            victims=draw.choice(["clock", "lrfu"]),
            page_cells=draw.choice([4, 16]),
        ),
        spec=SpecConfig(
            drafts=draw.choice([0, 1, 3, "auto"]),
            window_cells=draw.choice([None, 0, 48]),
            min_p=draw.choice([0.0, 0.0, 0.4]),
        ),
        vram_budget_bytes=draw.choice([None, model.weights.device_bytes + 24 * MIB]),
    )
    params = SamplingParams(
        max_new=new, temperature=draw.choice([0.0, 0.8]), top_p=draw.choice([1.0, 0.9])
    )
    session = create_session(model, config, prompt_cells=cells, max_new=new, environ={})
    session.prefill(text[:cells])
    if draw.random() < 0.3:
        parked = session.park()
        session.close()
        session = create_session(model, config, prompt_cells=cells, max_new=new, environ={})
        session.restore(parked)
    session.generate(params)
    if draw.random() < 0.3:
        session.rewind()
        session.generate(params)
    session.close()


def tensors() -> dict[str, int]:
    """Return how many tensors live, and the bytes of their storages."""
    gc.collect()
    live: dict[int, int] = {}
    count = 0
    for one in gc.get_objects():
        if issubclass(type(one), torch.Tensor) and one.layout == torch.strided:
            count += 1
            live[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
    return {"count": count, "bytes": sum(live.values())}


@pytest.mark.parametrize("captured", [False, True])
def test_a_closed_session_gives_its_memory_back_at_once(
    tiny: LanguageModel, captured: bool
) -> None:
    """Two arenas at a time would be twice the budget, and nobody knows when a collector runs."""
    config = SessionConfig(spec=SpecConfig(drafts=2), vram_budget_bytes=8 * MIB)
    session = create_session(tiny, config, prompt_cells=90, max_new=12, environ={})
    if captured:
        e = session.engine
        session.engine = CapturedEngine(e.model, e.kv, e.experts, e.drafter)
        del e
    session.prefill(prompt_of(tiny, 90))
    gc.collect()
    gc.disable()
    try:
        session.generate(SamplingParams(max_new=12, ignore_eos=True))
        kv, experts = weakref.ref(session.engine.kv), weakref.ref(session.engine.experts)
        session.close()
        assert kv() is None
        assert experts() is None
    finally:
        gc.enable()


def test_sessions_leave_no_tensor_behind(tiny: LanguageModel) -> None:
    draw, text = random.Random(5), prompt_of(tiny, 700)
    for _ in range(4):  # what a process makes once
        use_session(tiny, draw, text)
    before = tensors()
    for _ in range(40):
        use_session(tiny, draw, text)
    assert tensors() == before


def driver_bytes() -> int:
    """Return what the driver gave this process; where it does not say, what it gave everybody."""
    pynvml = pytest.importorskip("pynvml")
    pynvml.nvmlInit()
    uuid = torch.cuda.get_device_properties().uuid
    device = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device):
        if process.pid == os.getpid() and process.usedGpuMemory is not None:
            return int(process.usedGpuMemory)
    free, total = torch.cuda.mem_get_info()
    return total - free


def held() -> dict[str, Any]:
    """Return device and pinned bytes in use once nothing is cached."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch._C._host_emptyCache()
    # Of the two counts of pinned bytes torch 2.11 lets "active" grow past "allocated": the blocks
    # are gone from the driver, their count is not.
    pinned = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    return {
        "driver": driver_bytes(),
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "pinned": pinned,
    }


@pytest.mark.gpu
def test_sessions_leave_no_memory_of_a_device_behind() -> None:
    model = load_model(TINY, "cuda")
    draw, text = random.Random(5), prompt_of(model, 700)
    model.device_experts()
    for _ in range(20):  # kernels are loaded when they first run
        use_session(model, draw, text)
    before = held()
    for _ in range(200):
        use_session(model, draw, text)
    after = held()
    for name in ("allocated", "pinned"):
        assert after[name] == before[name], f"{name}: {before} -> {after}"
    # Kernels of knobs that the first sessions did not have may have come.
    for name in ("driver", "reserved"):
        assert after[name] - before[name] <= 8 * MIB, f"{name}: {before} -> {after}"
