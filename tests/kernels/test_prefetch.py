"""Prefetch against its reference, state by state, and what must hold while a page is on its way."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.config import Victims
from strata.kernels.prefetch import PREFETCHED, USED, Pending, ref
from strata.kernels.resolve import resolve
from strata.kernels.resolve.state import EPOCH, FILLED, ResolveState
from strata.lm.linear import Linear
from tests.kernels.devices import DEVICES
from tests.kernels.test_resolve import CPU, poisoned

triton_prefetch = pytest.importorskip("strata.kernels.prefetch.triton")
triton_resolve = pytest.importorskip("strata.kernels.resolve.triton")

LAYERS, TAIL, WORDS = 2, 2, 6
Windows = list[tuple[list[list[int]], list[list[int]], int]]


class Pool:
    """Pages in slots, each a few words that say whose they are."""

    def __init__(self, pages: int, slots: int, victims: Victims, ahead: int, where: str) -> None:
        self.kernels = where != "plain"
        device = torch.device("cpu" if where == "plain" else where)
        self.state = ResolveState.empty(LAYERS, pages, slots, victims, device)
        self.pending = Pending.empty(LAYERS, ahead, device)
        number = torch.arange(LAYERS * pages, dtype=torch.float32)
        host = number[:, None].repeat(1, WORDS)
        self.host = host.pin_memory() if device.type == "cuda" else host
        self.pool = torch.full((LAYERS * slots, WORDS), -1.0, device=device)

    def resolve(self, layer: int, asked: torch.Tensor, keep: int) -> list[int]:
        """Resolve one list of pages, bring them in, and return those that were read in place."""
        device = self.state.table.device
        out = poisoned(1, self.state.table.shape[1], device)
        run = triton_resolve.resolve if self.kernels else resolve
        at = torch.tensor([keep], device=device)
        run(self.state, asked.to(device), out, layer=layer, keep_from=at, distinct=True)
        admitted, missed = out.count[0].tolist()
        slots = self.state.owner.shape[1]
        for page, slot in zip(out.pages[0, :admitted], out.slots[0, :admitted], strict=True):
            number = layer * self.state.table.shape[1] + int(page)
            self.pool[layer * slots + int(slot)] = self.host[number].to(device)
        return out.pages[0, admitted:missed].tolist()

    def reserve(self, wanted: torch.Tensor, own: int) -> None:
        run = triton_prefetch if self.kernels else ref
        device = self.state.table.device
        at = torch.tensor([own], device=device)
        kwargs = {"block_sweep": 8} if self.kernels else {}
        run.reserve(
            self.state, wanted.to(device), self.pending, base=0, own=at, tail=TAIL, **kwargs
        )

    def fetch_and_publish(self) -> None:
        run = triton_prefetch if self.kernels else ref
        run.fetch(self.host, self.pool, self.pending)
        run.publish(self.state, self.pending)

    def check_content(self) -> None:
        """Assert that every slot that a table names holds its page."""
        pages, slots = self.state.table.shape[1], self.state.owner.shape[1]
        for layer in range(LAYERS):
            table, owner = self.state.table[layer].cpu(), self.state.owner[layer].cpu()
            for page in (table >= 0).nonzero()[:, 0].tolist():
                slot = int(table[page])
                assert int(owner[slot]) == page
                assert (self.pool[layer * slots + slot] == layer * pages + page).all()

    def check_between(self) -> None:
        """Assert that tables are a bijection and slots filled in order: nothing is pending."""
        self.check_content()
        for layer in range(LAYERS):
            held = (self.state.owner[layer].cpu() >= 0).nonzero()[:, 0]
            assert held.tolist() == list(range(int(self.state.scalars[layer, FILLED])))
            assert int((self.state.table[layer] >= 0).sum()) == len(held)


@st.composite
def sequences(draw: st.DrawFn) -> tuple[int, int, int, Windows]:
    """Return pages, slots, pages ahead, and windows: asked and wanted a layer, the own page."""
    pages = draw(st.integers(8, 40))
    slots = draw(st.integers(TAIL + 1, pages))
    windows: Windows = []
    for _ in range(draw(st.integers(1, 8))):
        own = draw(st.integers(TAIL + 2, pages - 1))
        older = st.integers(0, own - TAIL)
        tail = [*range(own - TAIL + 1, own + 1)]
        asked = [sorted({*draw(st.lists(older, max_size=8)), *tail}) for _ in range(LAYERS)]
        wanted = [
            draw(st.lists(st.integers(-1, own - TAIL), min_size=5, max_size=5))
            for _ in range(LAYERS)
        ]
        windows.append((asked, wanted, own))
    return pages, slots, draw(st.integers(1, 6)), windows


def run_sequence(victims: Victims, case: tuple[int, int, int, Windows], where: str) -> None:
    pages, slots, ahead, windows = case
    pools = [Pool(pages, slots, victims, ahead, each) for each in ("plain", where)]
    plain, twin = pools
    for asked, wanted, own in windows:
        selected: list[set[int]] = [set(), set()]
        for layer in range(LAYERS):
            for pool in pools:
                in_place = pool.resolve(layer, torch.tensor(asked[layer]), own)
                selected[layer] = set(asked[layer]) - set(in_place)
        before = plain.state.table.clone()
        for pool in pools:
            pool.reserve(torch.tensor(wanted, dtype=torch.int32), own)
            pool.check_content()
        same(plain, twin, "table", "owner", "scalars")
        for layer in range(LAYERS):
            on_way = plain.pending.slots[layer] >= 0
            table = plain.state.table[layer]
            lost = ((before[layer] >= 0) & (table < 0)).nonzero()[:, 0].tolist()
            assert not {*lost} & selected[layer], "a page that was selected lost its slot"
            assert all(page < own - TAIL + 1 for page in lost)
            coming = (plain.pending.pages[layer][on_way] - layer * pages).tolist()
            assert {*coming} <= {*wanted[layer]}
            assert len({*coming}) == len(coming)
            assert (table[coming] < 0).all(), "a table names a page that is on its way"
            places = plain.pending.slots[layer][on_way] - layer * slots
            assert (plain.state.owner[layer][places.long()] == -1).all()
        for pool in pools:
            pool.fetch_and_publish()
            pool.check_between()
        same(plain, twin, "table", "owner", "scalars", "counters")
        memory = plain.state.memory, twin.state.memory.cpu()
        torch.testing.assert_close(*memory, rtol=1e-14, atol=0)


def same(plain: Pool, twin: Pool, *names: str) -> None:
    """Assert that kernels left what the reference left, but for lists' unused entries."""
    a, b = plain.state, twin.state
    for name in names:
        assert torch.equal(getattr(a, name), getattr(b, name).cpu()), name
    for field in fields(Pending):
        if field.name not in ("spare", "pages"):
            mine, theirs = (getattr(p.pending, field.name).cpu() for p in (plain, twin))
            assert torch.equal(mine, theirs), field.name
    there = plain.pending.slots >= 0
    assert torch.equal(plain.pending.pages[there], twin.pending.pages.cpu()[there])


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("victims", ["clock", "lrfu"])
def test_a_page_on_its_way_is_nobodys(where: str, victims: Victims) -> None:
    @settings(
        max_examples=25 if where == "cpu" else 150,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(sequences())
    def check(case: tuple[int, int, int, Windows]) -> None:
        run_sequence(victims, case, where)

    check()


@pytest.mark.parametrize("where", DEVICES)
def test_what_a_later_resolve_reads_was_worth_it(where: str) -> None:
    pool = Pool(20, 6, "clock", 3, where)
    nothing = torch.full((LAYERS, 3), -1, dtype=torch.int32)
    for layer in range(LAYERS):
        pool.resolve(layer, torch.tensor([0, 1, 14, 15]), 15)
    pool.reserve(torch.tensor([[5, 6, 5], [7, -1, 1]], dtype=torch.int32), 15)
    pool.fetch_and_publish()
    assert pool.pending.counters.tolist() == [[2, 0], [1, 0]]
    for layer in range(LAYERS):
        pool.resolve(layer, torch.tensor([0, 5, 14, 15]), 15)
    pool.reserve(nothing, 15)
    assert pool.pending.counters[:, PREFETCHED].tolist() == [2, 1]
    assert pool.pending.counters[:, USED].tolist() == [1, 0]
    pool.reserve(nothing, 15)
    assert pool.pending.counters[:, USED].tolist() == [1, 0], "nothing is counted twice"


@pytest.mark.parametrize("where", DEVICES)
def test_the_best_scored_pages_without_a_slot_are_wanted(where: str) -> None:
    device = torch.device(where)
    torch.manual_seed(0)
    for pages, count, own in [(9, 4, 6), (70, 8, 60), (300, 8, 299), (40, 5, 3)]:
        scores = torch.randint(-20, 20, (LAYERS, pages)).float() / 4  # many are equal
        table = torch.where(torch.rand(LAYERS, pages) < 0.4, 3, -1).int()
        got = torch.full((LAYERS, count), 77, dtype=torch.int32, device=device)
        at = torch.tensor([own], device=device)
        triton_prefetch.forecast_pages(scores.to(device), at, table.to(device), got, tail=TAIL)
        expected = torch.empty(LAYERS, count, dtype=torch.int32)
        ref.forecast_pages(scores, torch.tensor([own]), table, expected, tail=TAIL)
        assert torch.equal(got.cpu(), expected)
        for layer in range(LAYERS):
            wanted = [page for page in expected[layer].tolist() if page >= 0]
            row = scores[LAYERS - 1 - layer]
            rest = {*range(1, own - TAIL + 1)} - {*wanted}
            others = [row[page] for page in rest if table[layer, page] < 0]
            assert all(table[layer, page] < 0 for page in wanted)
            assert not others or not wanted or row[wanted].min() >= max(others)


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize(("experts", "hidden", "count"), [(8, 32, 2), (48, 40, 4)])
def test_experts_are_forecast_as_they_are_routed(
    where: str, experts: int, hidden: int, count: int
) -> None:
    device = torch.device(where)
    torch.manual_seed(1)
    x, router = torch.randn(5, hidden), torch.randn(experts, hidden)
    got = torch.empty(5, count, dtype=torch.int32, device=device)
    scratch = torch.empty(5, count, device=device)
    triton_prefetch.forecast_experts(x.to(device), router.to(device), got, scratch)
    expected = torch.empty(5, count, dtype=torch.int32)
    ref.forecast_experts(x, Linear(router), expected)
    assert torch.equal(got.cpu(), expected)


@pytest.mark.parametrize("where", DEVICES)
def test_experts_of_the_next_layer_take_no_slot_of_this_one(where: str) -> None:
    """One pool over all layers: the window's own experts may still be read."""
    device = torch.device(where)
    states = [ResolveState.empty(1, 24, 5, "clock", each) for each in (CPU, device)]
    pending = [Pending.empty(1, 2, each) for each in (CPU, device)]
    torch.manual_seed(2)
    for step in range(9):
        base = step % 2 * 8
        ids = torch.stack([torch.randperm(8)[:2] for _ in range(2)]).int()
        wanted = torch.stack([torch.randperm(8)[:2] for _ in range(2)]).int().view(1, -1)
        out = poisoned(1, 8, CPU)
        resolve(states[0], ids, out, layer=0, base=base)
        triton_resolve.resolve(
            states[1], ids.to(device), poisoned(1, 8, device), layer=0, base=base, joined=True
        )
        ref.reserve(states[0], wanted, pending[0], base=base + 8, own=None, tail=0)
        triton_prefetch.reserve(
            states[1], wanted.to(device), pending[1], base=base + 8, own=None, tail=0
        )
        for state in states:
            assert (state.table[0].cpu()[ids.unique().long() + base] >= 0).all()
        assert torch.equal(pending[0].slots, pending[1].slots.cpu())
        ref.publish(states[0], pending[0])
        triton_prefetch.publish(states[1], pending[1])
        for name in ("table", "owner", "memory"):
            assert torch.equal(getattr(states[0], name), getattr(states[1], name).cpu())
        assert states[0].scalars[0, EPOCH] == step + 1
