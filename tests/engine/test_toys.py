"""What a careless engine would pass: slots for decoration, hidden copies, computed counters."""

from __future__ import annotations

import gc
import types
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from strata.arena import Arena
from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.experts.cache import PooledExperts
from strata.kv.geometry import pages_of
from strata.lm import LanguageModel, load_model
from strata.sampling import Sampler
from strata.session import Session, create_session
from tests.conftest import TINY, prompt_of

CELLS = 601  # seven cells short of a page's end
NEW = 7
DENSE, SELECTION = Selection(), Selection(cells=160)


def open_session(
    model: LanguageModel,
    *,
    ring: int = 0,
    selection: Selection = DENSE,
    drafts: int = 0,
    new: int = NEW,
    budget: int | None = None,
    page: int = 16,
) -> Session:
    config = SessionConfig(
        kv=KvConfig(resident_cells=ring, selection=selection, page_cells=page),
        spec=SpecConfig(drafts=drafts),
        vram_budget_bytes=budget,
    )
    session = create_session(model, config, prompt_cells=CELLS, max_new=new, environ={})
    session.prefill(prompt_of(model, CELLS, seed=2))
    return session


def tokens_of(session: Session, new: int = NEW) -> list[int]:
    return session.generate(SamplingParams(max_new=new, ignore_eos=True)).tokens


def resident_pages(session: Session, layer: int) -> list[tuple[int, int]]:
    table = session.engine.kv.residency.table[layer]
    pages = pages_of(session.engine.kv.committed, session.engine.kv.geometry.page_cells)
    return [(page, int(table[page])) for page in range(pages) if table[page] >= 0]


def poison(store: torch.Tensor, planes: int, numbers: list[int]) -> None:
    for number in numbers:
        store[number * planes : (number + 1) * planes] = torch.nan


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize(("ring", "selection"), [(0, DENSE), (256, DENSE), (0, SELECTION)])
def test_nan_over_the_host_copy_of_resident_pages_changes_nothing(
    tiny: LanguageModel, ring: int, selection: Selection, drafts: int
) -> None:
    """New cells stay within the last page, so no page leaves its slot meanwhile."""
    expected = tokens_of(open_session(tiny, ring=ring, selection=selection, drafts=drafts))
    session = open_session(tiny, ring=ring, selection=selection, drafts=drafts)
    transfer, g = session.engine.kv.transfer, session.engine.kv.geometry
    for layer in range(g.layers):
        pages = [page for page, _ in resident_pages(session, layer)]
        assert len(pages) == (ring // 16 or 38)
        poison(transfer.host[layer], g.planes, pages)
    assert tokens_of(session) == expected


@pytest.mark.parametrize("selection", [DENSE, SELECTION])
def test_nan_in_a_slot_shows(tiny: LanguageModel, selection: Selection) -> None:
    session = open_session(tiny, selection=selection)
    transfer, g = session.engine.kv.transfer, session.engine.kv.geometry
    slot = dict(resident_pages(session, 0))[0]  # page 0 is always read
    poison(transfer.pool[0], g.planes, [slot])
    assert session.engine._verify(torch.tensor([5])).isnan().all()


def test_nan_in_the_host_copy_of_a_page_without_a_slot_shows(tiny: LanguageModel) -> None:
    session = open_session(tiny, ring=256)
    transfer, g = session.engine.kv.transfer, session.engine.kv.geometry
    assert 3 not in dict(resident_pages(session, 1))
    poison(transfer.host[1], g.planes, [3])
    assert session.engine._verify(torch.tensor([5])).isnan().all()


def reachable(root: object) -> dict[int, torch.Tensor]:
    """Return every strided tensor that `root` keeps alive, by its storage."""
    seen: set[int] = set()
    todo, found = [root], {}
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type | types.ModuleType):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            if one.layout == torch.strided:
                found[one.untyped_storage().data_ptr()] = one
        elif isinstance(one, types.FunctionType):
            todo += [cell.cell_contents for cell in one.__closure__ or ()]
        else:
            todo += gc.get_referents(one)
    return found


@pytest.mark.parametrize("budget", [None, 1_500_000])
@pytest.mark.parametrize(("ring", "selection"), [(0, DENSE), (64, DENSE), (256, SELECTION)])
def test_the_ledger_is_what_the_session_holds(
    tiny: LanguageModel, ring: int, selection: Selection, budget: int | None
) -> None:
    if ring == 0 and budget:
        budget *= 2
    new = 64
    session = open_session(tiny, ring=ring, selection=selection, drafts=2, new=new, budget=budget)
    tokens_of(session, new)
    model = reachable(tiny)
    held = {at: t for at, t in reachable(session).items() if at not in model}
    kv, drafter = session.engine.kv, session.engine.drafter
    stores = (kv.transfer.host, drafter.ring.host, session.engine._prompt_queries)
    host = {t.untyped_storage().data_ptr() for t in stores}
    assert host <= held.keys()
    on_device = {at: t.untyped_storage().nbytes() for at, t in held.items() if at not in host}
    ledger = session.ledger
    beside_model = sum(ledger.values()) - ledger["weights"] - ledger.get("experts", 0)
    assert sum(on_device.values()) - beside_model <= 0.02 * sum(ledger.values())
    assert beside_model == session._arena.size_bytes
    assert ("experts" in ledger) == (budget is None)
    if ring:
        # Nothing but the host store is as large as the context.
        carved = session._arena.size_bytes
        rest = [size for size in on_device.values() if size != carved]
        assert max(rest) < kv.transfer.host.nbytes / 8
        assert ledger["kv ring"] < kv.transfer.host.nbytes
    if budget is not None:
        assert sum(ledger.values()) <= budget


def count_moves(store: object, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that says how many rows `store` has fetched from the host since."""
    moved = 0
    original = store._from_host

    def spy(*args: torch.Tensor) -> torch.Tensor:
        nonlocal moved
        moved += len(args[-1])
        return original(*args)

    monkeypatch.setattr(store, "_from_host", spy)
    return lambda: moved


@pytest.mark.parametrize("drafts", [0, 3, 7])
@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize(
    ("ring", "selection"), [(128, DENSE), (1, SELECTION), (400, SELECTION), (0, SELECTION)]
)
def test_counters_are_counted(
    tiny: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    ring: int,
    selection: Selection,
    page: int,
    drafts: int,
) -> None:
    new = 40
    session = open_session(tiny, ring=ring, selection=selection, drafts=drafts, new=new, page=page)
    g = session.engine.kv.geometry
    planes = count_moves(session.engine.kv.transfer, monkeypatch)
    done = session.generate(SamplingParams(max_new=new, ignore_eos=True))
    assert done.kv.lookups == done.kv.hits + done.kv.misses
    assert done.kv.overflows <= done.kv.misses
    assert done.kv.bytes == done.kv.misses * g.page_bytes
    assert planes() == done.kv.misses * g.planes
    assert session.engine.forwards == done.rounds
    if ring == 0:
        assert done.kv.misses == 0
    else:
        assert done.kv.misses > 0
    if selection.is_dense:
        assert done.kv.overflows == done.kv.misses
    elif drafts == 0:
        assert done.kv.overflows == 0


@pytest.mark.parametrize("drafts", [0, 3])
def test_expert_counters_are_counted(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch, drafts: int
) -> None:
    base = open_session(tiny, drafts=drafts, new=40)
    expected = base.generate(SamplingParams(max_new=40, ignore_eos=True))
    for slots in (2, 5, 15, 16):
        session = open_session(tiny, drafts=drafts, new=40, budget=1 << 30)
        assert isinstance(session.engine.experts, PooledExperts)
        assert session.expert_slots == 16
        pooled = PooledExperts(tiny.weights.experts, slots, Arena(1 << 20, tiny.device))
        session.engine.experts = pooled
        moved = count_moves(pooled, monkeypatch)
        done = session.generate(SamplingParams(max_new=40, ignore_eos=True))
        assert done.tokens == expected.tokens
        assert moved() == done.experts.misses > 0
        if slots == 2:
            assert (done.experts.overflows > 0) == (drafts > 0), "two experts a row, one row"
        assert done.experts.bytes == done.experts.misses * tiny.weights.experts[0].nbytes
        if slots == 16:
            assert done.experts.misses <= 16


ROUNDS = 12
WAITS = ("Synchronize", "cudaEventQuery", "cudaStreamQuery")


@pytest.mark.gpu
@pytest.mark.parametrize("experts", [False, True], ids="pooled={}".format)
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize(("ring", "selection"), [(0, DENSE), (256, DENSE), (256, SELECTION)])
def test_a_round_is_one_launch_and_one_wait(
    ring: int, selection: Selection, drafts: int, experts: bool
) -> None:
    """The host decides nothing within a round: it launches a graph and waits for its tokens."""
    model = load_model(TINY, "cuda")
    budget = model.weights.device_bytes + (24 << 20) if experts else None
    new = (ROUNDS + 3) * (drafts + 1)
    session = open_session(
        model, ring=ring, selection=selection, drafts=drafts, new=new, budget=budget
    )
    engine, sampler = session.engine, Sampler(SamplingParams())
    engine.first_token(sampler)
    engine.round(sampler, drafts)  # captures
    before = engine.forwards
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True
    ) as recorded:
        for _ in range(ROUNDS):
            engine.round(sampler, drafts)
    assert engine.forwards == before + ROUNDS
    calls = Counter(event.name for event in recorded.events())
    assert calls["cudaGraphLaunch"] == ROUNDS, calls
    assert calls["cudaEventSynchronize"] == ROUNDS, calls
    copies = [name for name in calls if name.lower().startswith(("cudamemcpy", "memcpy"))]
    assert not copies, calls
    waits = {name for name in calls if any(word in name for word in WAITS)}
    # The profiler waits for the device when it stops.
    assert waits <= {"cudaEventSynchronize", "cudaDeviceSynchronize"}, calls
    assert calls["cudaDeviceSynchronize"] <= 2, calls
