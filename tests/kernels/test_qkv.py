"""Queries and new cells against plain torch, and where the cells go.

Held: values to a tolerance; a cell has the same bits in `cells`, in its host page and in its slot,
and no other value of either store is touched; a page without a slot goes to the host alone; a ring
takes cells by their modulus; a row's bits whatever its company; angles to the last positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from strata.kernels.qkv import CellStore, ref
from strata.kernels.wide import split_count
from strata.lm.layers import Rotary
from strata.lm.linear import Linear
from strata.lm.weights import AttentionWeights
from tests.kernels.devices import DEVICES, rms_ratio

triton_qkv = pytest.importorskip("strata.kernels.qkv.triton")
wide_qkv = pytest.importorskip("strata.kernels.qkv.wide")

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}
EPS = 1e-6
NAN = float("nan")
PAGES, SLOTS = 8, 3


class Angles(Rotary):
    """The rotation of heads of `dim` values, without a model."""

    def __init__(self, dim: int) -> None:
        exponent = torch.arange(0, dim, 2, dtype=torch.float32) / dim
        self.inverse = 1.0 / 500_000.0**exponent


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a call wrote, on the CPU; NaN where it wrote nothing."""

    q: torch.Tensor
    cells: torch.Tensor
    pool: torch.Tensor
    host: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Case:
    """One layer's projections, and rows at consecutive positions."""

    hidden: int = 48
    heads: int = 2
    kv_heads: int = 1
    dim: int = 16
    rows: int = 3
    dtype: torch.dtype = torch.float32
    page_cells: int = 4
    first: int = 6
    slots: int = SLOTS
    table: tuple[int, ...] | None = (-1, 2, 0, -1, 1, -1)
    on_host: bool = True
    wide: bool = False

    def scratch(self, device: str) -> dict[str, torch.Tensor]:
        """Return what the wide kernel's programs hand to each other."""
        heads = self.heads + 2 * self.kv_heads
        shape = (self.rows, heads * self.dim * split_count(self.hidden))
        return {
            "parts": torch.full(shape, NAN, device=device),
            "counter": torch.zeros(heads, dtype=torch.int32, device=device),
        }

    @property
    def normed(self) -> torch.Tensor:
        torch.manual_seed(self.hidden)
        return torch.randn(8, self.hidden)[: self.rows].to(self.dtype)

    @property
    def weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(self.heads + self.dim)
        qkv = torch.randn((self.heads + 2 * self.kv_heads) * self.dim, self.hidden)
        gains = 1 + 0.1 * torch.randn(self.heads + self.kv_heads, self.dim)
        return (qkv / self.hidden**0.5).to(self.dtype), gains.to(self.dtype)

    def run(self, device: str, normed: torch.Tensor | None = None) -> Written:
        """Run the kernel, or the reference where `device` is empty."""
        target = device or "cpu"
        normed = (self.normed if normed is None else normed).to(target)
        qkv, gains = (t.to(target) for t in self.weights)
        planes = 2 * self.kv_heads

        def nan(*shape: int) -> torch.Tensor:
            return torch.full(shape, NAN, dtype=self.dtype, device=target)

        pool = nan(self.slots * planes, self.page_cells, self.dim)
        pages = PAGES if self.on_host else 0
        host = nan(pages * planes, self.page_cells, self.dim).cpu()
        host = host.pin_memory() if target == "cuda" and self.on_host else host
        table = None
        if self.table is not None:
            table = torch.tensor(self.table, dtype=torch.int32, device=target)
        store = CellStore(pool=pool, host=host if self.on_host else None, table=table)
        positions = torch.arange(self.first, self.first + self.rows, device=target)
        q = nan(self.rows, self.heads, self.dim)
        cells = nan(self.rows, 2, self.kv_heads, self.dim)
        rotary = Angles(self.dim)
        if device:
            inverse = rotary.inverse.to(target)
            launch = wide_qkv.project_cells if self.wide else triton_qkv.project_cells
            scratch = self.scratch(target) if self.wide else {}
            launch(
                normed, qkv, gains, inverse, positions, store, eps=EPS, q=q, cells=cells, **scratch
            )
            if self.wide:
                assert not scratch["counter"].any()
        else:
            zero = torch.zeros(0)
            w = AttentionWeights(
                norm=zero, qkv=Linear(qkv), qk_norm=gains, out=Linear(zero[None]), post_norm=zero
            )
            ref.project_cells(normed, w, rotary, positions, store, eps=EPS, q=q, cells=cells)
        if target == "cuda":
            torch.cuda.synchronize()
        return Written(q=q.cpu(), cells=cells.cpu(), pool=pool.cpu(), host=host.clone())


def check(case: Case, device: str) -> Written:
    """Assert that values agree, and that both stores hold the cells and nothing besides."""
    got, expected = case.run(device), case.run("")
    tolerance = TOLERANCE[case.dtype]
    assert rms_ratio(got.q, expected.q) < tolerance
    for kind in (0, 1):
        assert rms_ratio(got.cells[:, kind], expected.cells[:, kind]) < tolerance
    pool, host = (torch.full_like(t, NAN) for t in (got.pool, got.host))
    for r, position in enumerate(range(case.first, case.first + case.rows)):
        page, offset = divmod(position, case.page_cells)
        slot = page % case.slots if case.table is None else case.table[page]
        for plane, values in enumerate(got.cells[r].flatten(0, 1)):
            if case.on_host:
                host[page * 2 * case.kv_heads + plane, offset] = values
            if slot >= 0:
                pool[slot * 2 * case.kv_heads + plane, offset] = values
    for mine, its in ((got.pool, pool), (got.host, host)):
        assert torch.equal(mine.isnan(), its.isnan())
        assert torch.equal(mine.nan_to_num(7.0), its.nan_to_num(7.0))
    # The reference puts them in the same places.
    assert torch.equal(got.pool.isnan(), expected.pool.isnan())
    assert torch.equal(got.host.isnan(), expected.host.isnan())
    return got


WIDE = pytest.mark.parametrize("wide", [False, True], ids=["narrow", "wide"])

SHAPES = [
    Case(rows=8, page_cells=1, first=0, table=(0, -1, 3, 1, -1, -1, 2, -1), slots=4, hidden=16),
    Case(hidden=100, dim=24, kv_heads=3, heads=3),
    Case(hidden=640, dim=64, heads=1, rows=2, page_cells=16, first=31),
    Case(hidden=256, dim=128, heads=1, rows=1, first=16),
    Case(hidden=48, dim=100, heads=1, rows=2, first=11),
    Case(hidden=48, heads=16, kv_heads=4, rows=1, first=23),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("case", SHAPES, ids=range(len(SHAPES)))
@WIDE
def test_queries_and_cells_agree_and_go_where_they_belong(
    device: str, dtype: torch.dtype, case: Case, wide: bool
) -> None:
    check(replace(case, dtype=dtype, wide=wide), device)


@pytest.mark.parametrize("device", DEVICES)
@WIDE
def test_pages_without_a_slot_go_to_the_host_alone(device: str, wide: bool) -> None:
    got = check(Case(rows=8, first=0, table=(-1,) * PAGES, wide=wide), device)
    assert got.pool.isnan().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize(("page_cells", "first"), [(1, 2), (1, 0), (4, 13)])
@WIDE
def test_a_ring_takes_cells_by_their_modulus(
    device: str, on_host: bool, page_cells: int, first: int, wide: bool
) -> None:
    case = Case(rows=5, kv_heads=2, page_cells=page_cells, first=first, table=None, slots=5)
    case = replace(case, on_host=on_host, wide=wide)
    got = check(case, device)
    assert page_cells != 1 or not got.pool.isnan().any()


@pytest.mark.parametrize("device", DEVICES)
@WIDE
def test_a_ring_at_the_last_positions(device: str, wide: bool) -> None:
    """A phase of 130,000 radians: a sine that is not reduced first has no right digit left."""
    for dtype in TOLERANCE:
        case = Case(dim=32, first=131_064, rows=2, page_cells=1, table=None, on_host=False, slots=7)
        check(replace(case, dtype=dtype, wide=wide), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("hidden", [48, 640])
@WIDE
def test_a_row_does_not_depend_on_the_others(device: str, hidden: int, wide: bool) -> None:
    case = Case(rows=8, hidden=hidden, dtype=torch.bfloat16, dim=32, heads=1, page_cells=1, first=4)
    case = replace(case, table=None, on_host=False, slots=8, wide=wide)
    together, rows = case.run(device), case.normed
    for r in (0, 3, 7):
        alone = replace(case, first=4 + r, rows=1).run(device, rows[r : r + 1])
        assert torch.equal(alone.q[0], together.q[r])
        assert torch.equal(alone.cells[0], together.cells[r])
    few = replace(case, first=6, rows=2).run(device, rows[2:4])
    assert torch.equal(few.q, together.q[2:4])
    rows[5] = NAN
    broken = case.run(device, rows)
    assert broken.q[5].isnan().all()
    assert broken.cells[5].isnan().all()
    for r in (4, 6):
        assert torch.equal(broken.q[r], together.q[r])


@pytest.mark.gpu
@pytest.mark.parametrize(("hidden", "heads", "kv_heads"), [(256, 8, 1), (2_048, 16, 4)])
def test_the_bundled_sizes_give_the_same_bits_every_time(
    hidden: int, heads: int, kv_heads: int
) -> None:
    case = Case(hidden=hidden, heads=heads, kv_heads=kv_heads, dim=64, rows=8, dtype=torch.bfloat16)
    case = replace(case, page_cells=16, first=40, wide=hidden > 256)
    first = check(case, "cuda")
    for _ in range(50):
        again = case.run("cuda")
        assert torch.equal(again.q, first.q)
        assert torch.equal(again.cells, first.cells)
