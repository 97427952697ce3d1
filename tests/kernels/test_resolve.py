"""Residency in one program against `Residency`, state by state, over random sequences."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.config import Victims
from strata.kernels.resolve import resolve
from strata.kernels.resolve.state import EPOCH, FILLED, TIME, Admitted, ResolveState
from strata.kv.counters import Counters
from strata.kv.residency import Residency
from strata.kv.victims import Clock, Lrfu, make_victims
from tests.kernels.devices import DEVICES

triton_resolve = pytest.importorskip("strata.kernels.resolve.triton")

CPU = torch.device("cpu")
BLOCK = 8
"""Small, so that the loops over blocks turn."""


@dataclass
class Oracle:
    """`Residency` with the counts that its caller keeps."""

    pages: int
    slots: int
    victims: Victims
    counters: Counters = field(default_factory=Counters)

    def __post_init__(self) -> None:
        table = torch.empty(1, self.pages, dtype=torch.int32)
        owner = torch.empty(1, self.slots, dtype=torch.int32)
        self.policy = make_victims(self.victims, 1, self.slots, CPU)
        self.residency = Residency(self.policy, table, owner)

    def resolve(
        self, pages: torch.Tensor, keep_from: int | None
    ) -> tuple[list[int], list[int], int]:
        """Return admitted pages, their slots and the number of misses."""
        asked = torch.unique(pages[pages >= 0])
        before, admission = self.residency.resolve(0, asked, keep_from=keep_from)
        admitted, slots, misses = [], [], 0
        if admission is not None:
            misses = int((before < 0).sum())
            admitted, slots = admission.pages.tolist(), admission.slots.tolist()
        self.counters.count(
            lookups=len(asked), misses=misses, overflows=misses - len(admitted), item_bytes=0
        )
        return admitted, slots, misses

    def check(self, state: ResolveState, layer: int = 0) -> None:
        """Assert that `state` holds what this holds."""
        self.residency.check_integrity()
        assert torch.equal(state.table[layer].cpu(), self.residency.table[0])
        assert torch.equal(state.owner[layer].cpu(), self.residency.owner[0])
        scalars = state.scalars[layer].tolist()
        assert scalars[FILLED] == self.residency.filled[0]
        (memory,) = self.policy.state().values()
        if isinstance(self.policy, Clock):
            assert scalars[TIME] == self.policy._hand[0]
            assert torch.equal(state.memory[layer].cpu() > 0, memory[0])
        else:
            assert isinstance(self.policy, Lrfu)
            assert scalars[TIME] == self.policy._time[0]
            torch.testing.assert_close(state.memory[layer].cpu(), memory[0], rtol=1e-14, atol=0)
        c = self.counters
        assert state.counters[layer].tolist() == [c.lookups, c.hits, c.misses, c.overflows]


def poisoned(layers: int, room: int, device: torch.device) -> Admitted:
    out = Admitted.empty(layers, room, device)
    for tensor in (out.pages, out.slots, out.count):
        tensor.fill_(-7)
    return out


def check_admitted(
    out: Admitted, expected: tuple[list[int], list[int], int], asked: torch.Tensor, at: int = 0
) -> None:
    pages, slots, misses = expected
    assert out.count[at].tolist() == [len(pages), misses]
    assert out.pages[at, : len(pages)].tolist() == pages
    assert out.slots[at, : len(slots)].tolist() == slots
    in_place = out.pages[at, len(pages) : misses].tolist()
    assert set(in_place) <= set(asked.tolist()) - set(pages)
    assert len(set(in_place)) == misses - len(pages)


@st.composite
def sequences(draw: st.DrawFn) -> tuple[int, int, list[tuple[list[list[int]], int | None]]]:
    """Return pages, slots and windows: rows of page lists, and from where pages are kept."""
    pages = draw(st.integers(2, 40))
    slots = draw(st.integers(1, pages))
    number = st.integers(0, pages - 1)
    windows = []
    for _ in range(draw(st.integers(1, 8))):
        rows, wide = draw(st.integers(1, 4)), draw(st.integers(1, min(pages, 12)))
        listed = [
            sorted(draw(st.lists(number, min_size=wide, max_size=wide, unique=True)))
            for _ in range(rows)
        ]
        windows.append((listed, draw(st.none() | st.integers(0, pages))))
    return pages, slots, windows


def run_sequence(
    victims: Victims, case: tuple[int, int, list[tuple[list[list[int]], int | None]]], where: str
) -> None:
    pages, slots, windows = case
    device = torch.device(where)
    oracle = Oracle(pages, slots, victims)
    state = ResolveState.empty(1, pages, slots, victims, device)
    plain = ResolveState.empty(1, pages, slots, victims, CPU)
    for listed, keep in windows:
        asked = torch.tensor(listed)
        expected = oracle.resolve(asked.flatten(), keep)
        kept = None if keep is None else torch.tensor([keep])
        out = poisoned(1, pages, CPU)
        resolve(plain, asked, out, layer=0, keep_from=kept)  # a CPU takes the reference
        check_admitted(out, expected, asked.flatten())
        oracle.check(plain)
        out = poisoned(1, pages, device)
        triton_resolve.resolve(
            state,
            asked.to(device),
            out,
            layer=0,
            keep_from=None if kept is None else kept.to(device),
            distinct=len(listed) == 1,
            block=BLOCK,
        )
        check_admitted(out, expected, asked.flatten())
        oracle.check(state)
    assert state.scalars[0, EPOCH] == len(windows)


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("victims", ["clock", "lrfu"])
def test_sequences_decide_as_residency_does(where: str, victims: Victims) -> None:
    @settings(
        max_examples=40 if where == "cpu" else 200,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(sequences())
    def check(case: tuple[int, int, list[tuple[list[list[int]], int | None]]]) -> None:
        run_sequence(victims, case, where)

    check()


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("victims", ["clock", "lrfu"])
def test_a_churning_pool_keeps_deciding_alike(where: str, victims: Victims) -> None:
    """A drifting selection over a pool twice its size: what decode does."""
    torch.manual_seed(3)
    windows: list[tuple[list[list[int]], int | None]] = []
    hot = torch.randperm(90)
    for step in range(25):
        hot = torch.cat([hot[3:], torch.randint(0, 100, (3,))])
        rows = [
            sorted(hot.unique()[torch.randperm(len(hot.unique()))[:20]].tolist()) for _ in range(3)
        ]
        windows.append((rows, 80 + step // 5))
    run_sequence(victims, (100, 45, windows), where)


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("victims", ["clock", "lrfu"])
def test_experts_are_numbered_over_layers_and_padding_is_nobody(
    where: str, victims: Victims
) -> None:
    device = torch.device(where)
    oracle = Oracle(24, 7, victims)
    state = ResolveState.empty(1, 24, 7, victims, device)
    torch.manual_seed(1)
    for step in range(12):
        base = step % 3 * 8
        ids = torch.stack([torch.randperm(8)[:2] for _ in range(4)])
        ids[step % 4 + 1 :] = -1  # rows that only pad the window
        expected = oracle.resolve(torch.where(ids >= 0, ids + base, -1).flatten(), None)
        out = poisoned(1, 8, device)
        triton_resolve.resolve(state, ids.to(device), out, layer=0, base=base, block=BLOCK)
        check_admitted(out, expected, torch.where(ids >= 0, ids + base, -1).flatten())
        oracle.check(state)


@pytest.mark.gpu
@pytest.mark.parametrize("victims", ["clock", "lrfu"])
@pytest.mark.parametrize(("pages", "slots", "wide"), [(8_256, 2_048, 128), (8_256, 8_192, 1_032)])
def test_the_largest_pools_on_the_device(
    victims: Victims, pages: int, slots: int, wide: int
) -> None:
    oracle = Oracle(pages, slots, victims)
    state = ResolveState.empty(1, pages, slots, victims, torch.device("cuda"))
    torch.manual_seed(0)
    for step in range(30):
        rows = [1, 4, 8][step % 3]
        center = torch.randn(rows, pages) + 3 * torch.sin(torch.arange(pages) / 500 + step / 5)
        asked = center.topk(wide).indices.sort().values
        expected = oracle.resolve(asked.flatten(), pages - 3)
        out = poisoned(1, pages, torch.device("cuda"))
        triton_resolve.resolve(
            state,
            asked.cuda(),
            out,
            layer=0,
            keep_from=torch.tensor([pages - 3], device="cuda"),
            distinct=rows == 1,
        )
        check_admitted(out, expected, asked.flatten())
        oracle.check(state)


@pytest.mark.gpu
@pytest.mark.parametrize("victims", ["clock", "lrfu"])
def test_a_captured_resolve_goes_on_where_it_stood(victims: Victims) -> None:
    oracle = Oracle(500, 90, victims)
    device = torch.device("cuda")
    state = ResolveState.empty(1, 500, 90, victims, device)
    asked = torch.zeros(2, 40, dtype=torch.int64, device=device)
    keep = torch.tensor([490], device=device)
    out = poisoned(1, 80, device)

    def launch() -> None:
        triton_resolve.resolve(state, asked, out, layer=0, keep_from=keep)

    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for tensor in (state.table, state.owner):
        tensor.fill_(-1)
    state.start([0])
    state.counters.zero_()
    for step in range(20):
        torch.manual_seed(step)
        pages = torch.stack([torch.randperm(300)[:40] + step for _ in range(2)])
        asked.copy_(pages)
        graph.replay()
        check_admitted(out, oracle.resolve(pages.flatten(), 490), pages.flatten())
        oracle.check(state)
