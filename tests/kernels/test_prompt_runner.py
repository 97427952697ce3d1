"""Prompts through kernels: the torch engine's K/V, the same bits whatever the ring or budget."""

from __future__ import annotations

import pytest
import torch

from strata.config import KvConfig, Selection, SessionConfig, SpecConfig
from strata.kernels import device as kernel_device
from strata.lm import LanguageModel, bundled_model_path, load_model
from strata.prompt import plan
from strata.prompt.plan import Way
from strata.session import Session, create_session
from tests.conftest import TINY, prompt_of
from tests.kernels.devices import DEVICES, rms_ratio, seed_by

pytest.importorskip("strata.kernels.attention.triton")

PROMPT = 150
CHUNK = 64


@pytest.fixture(params=DEVICES)
def model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    """Return the stand-in model where kernels run, with chunks that a short prompt fills."""
    if request.param == "cpu":  # interpreted
        monkeypatch.setattr(kernel_device, "has_kernels", lambda tensor: True)
        seed_by(PROMPT % CHUNK + 2, monkeypatch)  # from the chunk before the last on
    monkeypatch.setattr(plan, "WAYS", (Way(CHUNK, CHUNK, CHUNK),))
    return load_model(TINY, request.param)


def session_of(
    model: LanguageModel,
    *,
    ring: int = 0,
    page: int = 16,
    select: int = 0,
    budget: int | None = None,
    drafts: int = 0,
) -> Session:
    config = SessionConfig(
        kv=KvConfig(resident_cells=ring, page_cells=page, selection=Selection(cells=select)),
        spec=SpecConfig(drafts=drafts),
        vram_budget_bytes=budget,
    )
    return create_session(model, config, prompt_cells=PROMPT, max_new=8, environ={})


def small_budget(model: LanguageModel) -> int:
    """Return a budget that is nearly the least: a GPU's arena has at least ten MiB."""
    room = 13 << 20 if model.device.type == "cuda" else 1 << 19
    return model.weights.device_bytes + room


def test_the_torch_engine_agrees(model: LanguageModel) -> None:
    ids = prompt_of(model, PROMPT)
    got = session_of(model, drafts=1)
    plain = session_of(model, drafts=1)
    plain.engine.prompt = None
    for session in (got, plain):
        session.prefill(ids)
    limit = 1e-5 if model.dtype == torch.float32 else 3e-2
    one, other = got.park(), plain.park()
    assert one.drafter_cells is not None
    assert other.drafter_cells is not None
    assert rms_ratio(one.cells, other.cells) < limit
    assert rms_ratio(one.queries, other.queries) < limit
    assert rms_ratio(one.hidden, other.hidden) < limit
    assert rms_ratio(one.drafter_cells[1:], other.drafter_cells[1:]) < limit


@pytest.mark.gpu
@pytest.mark.parametrize("ring", [0, 1024])
def test_the_bundled_model_errs_no_more_than_plain_products_do(
    bundled: LanguageModel, ring: int
) -> None:
    cells = 10_000  # more than a chunk
    ids = prompt_of(bundled, cells)
    gpu = load_model(bundled_model_path(), "cuda")
    config = SessionConfig(kv=KvConfig(resident_cells=ring), spec=SpecConfig(drafts=1))
    parked = []
    for model, kernels in ((bundled, False), (gpu, False), (gpu, True)):
        session = create_session(model, config, prompt_cells=cells, max_new=8, environ={})
        if not kernels:
            session.engine.prompt = None
        session.prefill(ids)
        parked.append(session.park())
    expected, plain, got = (
        [*one.cells, one.hidden, one.queries, one.drafter_cells[1:]]  # type: ignore[index]
        for one in parked
    )
    for exact, theirs, ours in zip(expected, plain, got, strict=True):
        # Twice, because the last row alone is one draw of its rounding errors.
        assert rms_ratio(ours, exact) < 2 * rms_ratio(theirs, exact) + 2e-3


def test_ring_page_and_budget_leave_no_trace_and_a_parked_prompt_seeds_the_same(
    model: LanguageModel,
) -> None:
    ids = prompt_of(model, PROMPT)
    first = session_of(model)
    first.prefill(ids)
    expected = first.park()
    least = small_budget(model)
    for ring, page, select, budget in (
        (0, 10, 0, None),
        (96, 16, 80, None),
        (90, 10, 0, None),
        (96, 16, 80, least),
    ):
        session = session_of(model, ring=ring, page=page, select=select, budget=budget)
        assert session.engine.prompt is not None
        session.prefill(ids)
        parked = session.park()
        assert torch.equal(parked.cells, expected.cells)
        assert torch.equal(parked.hidden, expected.hidden)
        assert torch.equal(parked.queries, expected.queries)
        again = session_of(model, ring=ring, page=page, select=select, budget=budget)
        again.restore(parked)
        assert_same_ring(session, again)


def test_experts_may_come_late_into_the_room_of_attention(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = prompt_of(model, PROMPT)
    first = session_of(model)
    first.prefill(ids)
    monkeypatch.setattr(plan, "WAYS", (Way(CHUNK, CHUNK // 2, CHUNK, late=True),))
    session = session_of(model, ring=96, select=80, budget=small_budget(model))
    prompt = session.engine.prompt
    assert prompt is not None
    assert prompt._plan.expert_tile == CHUNK // 4
    start, _, _ = prompt._plan.places()["experts"]
    assert start > prompt._plan.places()["q"][0]
    session.prefill(ids)
    got, expected = session.park(), first.park()
    assert rms_ratio(got.cells, expected.cells) < 1e-5  # a CPU's products know their row's place
    assert rms_ratio(got.hidden, expected.hidden) < 1e-5
    if model.device.type == "cuda":
        assert torch.equal(got.cells, expected.cells)


@pytest.mark.gpu
def test_neither_chunk_nor_tile_nor_segment_leaves_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(TINY, "cuda")
    ids = prompt_of(model, PROMPT)
    found = []
    for way in (
        Way(256, 256, 64),
        Way(128, 128, 128),
        Way(64, 64, 64),
        Way(128, 64, 128),
        Way(128, 32, 64, late=True),
    ):
        monkeypatch.setattr(plan, "WAYS", (way,))
        session = session_of(model, ring=96, drafts=1)
        session.prefill(ids)
        found.append(session.park())
    for other in found[1:]:
        assert torch.equal(other.cells, found[0].cells)
        assert torch.equal(other.hidden, found[0].hidden)
        assert other.drafter_cells is not None
        assert found[0].drafter_cells is not None
        assert torch.equal(other.drafter_cells, found[0].drafter_cells)


def assert_same_ring(one: Session, other: Session) -> None:
    if one.model.device.type == "cuda":
        torch.cuda.synchronize()
    a, b = one.engine.kv, other.engine.kv
    assert torch.equal(a.transfer.host, b.transfer.host)
    assert torch.equal(a.transfer.pool, b.transfer.pool)
    assert torch.equal(a.residency.table, b.residency.table)
    assert torch.equal(a.residency.owner, b.residency.owner)
    assert a.residency.filled == b.residency.filled
    assert (a.bounds is None) == (b.bounds is None)
    if a.bounds is not None and b.bounds is not None:
        assert torch.equal(a.bounds, b.bounds)
    a.residency.check_integrity()


def test_a_prompt_borrows_the_room_of_ring_and_slots_and_books_what_exceeds_it(
    model: LanguageModel,
) -> None:
    ids = prompt_of(model, PROMPT)
    session = session_of(model, ring=96, budget=small_budget(model))
    ledger = session.ledger
    assert sum(ledger.values()) <= small_budget(model)
    kv, prompt = session.engine.kv, session.engine.prompt
    assert prompt is not None
    arena = session._arena
    assert all(arena.owns(tensor) for tensor in prompt._room.values())
    lent = ledger["kv ring"] + ledger["expert slots"]
    excess = max(0, prompt._plan.size_bytes - lent)
    assert ledger.get("prompt workspace", 0) == excess
    for tensor in prompt._room.values():
        tensor.view(torch.uint8).fill_(255)  # NaN in every type
    session.prefill(ids)
    assert kv.transfer.pool.isfinite().all()
    assert session.engine.experts.slots > 0
