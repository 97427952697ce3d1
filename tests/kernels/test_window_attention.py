"""Attention over the drafter's modulo ring against plain torch.

Held: values to a tolerance at any depth of the window and however often the ring wrapped; nothing
but the window's cells is read, so that a NaN elsewhere leaves no trace and one inside does; every
split is written; the row that is asked for, wherever it stands, has the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from strata.kernels.paged_attention import Splits
from strata.kernels.window_attention import ref, window_shape
from tests.kernels.devices import DEVICES, rms_ratio

triton_window = pytest.importorskip("strata.kernels.window_attention.triton")

TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 1e-2}
NAN = float("nan")
BROKEN = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
"""The interpreter's arithmetic warns where it meets a NaN, which is what is tested."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row's window; what lies outside of it is NaN."""

    window: int = 100
    position: int = 250
    capacity: int = 109
    kv_heads: int = 1
    group: int = 2
    dim: int = 16
    dtype: torch.dtype = torch.float32
    row: int | None = None

    @property
    def cells(self) -> range:
        return range(max(1, self.position - self.window + 1), self.position + 1)

    @property
    def q(self) -> torch.Tensor:
        """Return queries of 8 rows, NaN but for the one that is asked for."""
        torch.manual_seed(self.dim)
        q = torch.full((8, self.kv_heads, self.group, self.dim), NAN, dtype=self.dtype)
        q[self.row or 0] = torch.randn(self.kv_heads, self.group, self.dim).to(self.dtype)
        return q

    @property
    def ring(self) -> torch.Tensor:
        torch.manual_seed(self.window)
        ring = torch.full((self.capacity, 2, self.kv_heads, self.dim), NAN, dtype=self.dtype)
        for cell in self.cells:
            ring[cell % self.capacity] = torch.randn(2, self.kv_heads, self.dim).to(self.dtype)
        return ring

    def splits(self, device: str, ring: torch.Tensor | None = None) -> Splits:
        """Return the kernel's splits, on the CPU."""
        shape = window_shape(self.kv_heads * self.group, self.dim, self.window)
        out = (
            torch.full(shape, NAN, device=device),
            torch.full((2, *shape[:2]), NAN, device=device),
        )
        made = triton_window.attend_window(
            self.q.to(device),
            (self.ring if ring is None else ring).to(device),
            torch.tensor([self.position], device=device),
            self.window,
            out,
            row=None if self.row is None else torch.tensor([self.row], device=device),
        )
        assert made.sums is out[0]
        assert made.stats is out[1]
        return replace(made, sums=made.sums.cpu(), stats=made.stats.cpu())

    def expected(self) -> torch.Tensor:
        """Return the reference's attention, the softmax in float64."""
        ring, q = self.ring.double(), self.q.double()
        at = torch.tensor([self.position])
        row = None if self.row is None else torch.tensor([self.row])
        return ref.attend_window(q, ring, at, self.window, row=row).reduced(1)


CASES = {
    "a ring that wrapped": Case(),
    "the first cell": Case(position=1),
    "less than a window": Case(position=37, capacity=209, window=200),
    "one split and a cell": Case(window=65, capacity=74, position=10_000),
    "a short window": Case(window=16, capacity=25, position=24),
    "many heads": Case(kv_heads=4, group=4, window=64, capacity=73),
    "16 heads a K/V head": Case(group=16, dim=24),
    "3 heads of 100": Case(kv_heads=2, group=3, dim=100),
    "heads of 128": Case(dim=128, group=1, position=100_000),
    "a row": Case(row=5, dim=64),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("name", CASES)
def test_attention_agrees_and_reads_nothing_else(
    device: str, dtype: torch.dtype, name: str
) -> None:
    case = replace(CASES[name], dtype=dtype)
    splits = case.splits(device)
    assert not splits.stats.isnan().any()
    assert not splits.sums.isnan().any()
    assert rms_ratio(splits.reduced(1), case.expected()) < TOLERANCE[dtype]


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_has_the_same_bits_wherever_it_stands(device: str) -> None:
    case = Case(dtype=torch.bfloat16, kv_heads=2)
    alone = case.splits(device)
    for row in (0, 3, 7):
        there = replace(case, row=row).splits(device)
        assert torch.equal(there.sums, alone.sums)
        assert torch.equal(there.stats, alone.stats)


@pytest.mark.parametrize("device", DEVICES)
def test_places_of_the_ring_leave_no_trace(device: str) -> None:
    """The same cells in rings of other capacities, as other windows' rings are."""
    case = Case(dtype=torch.bfloat16)
    there = case.splits(device)
    for capacity in (110, 173):
        moved = torch.full((capacity, 2, 1, 16), NAN, dtype=case.dtype)
        for cell in case.cells:
            moved[cell % capacity] = case.ring[cell % case.capacity]
        assert torch.equal(case.splits(device, moved).sums, there.sums)


@BROKEN
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("plane", [0, 1])
@pytest.mark.parametrize("name", ["a ring that wrapped", "the first cell", "one split and a cell"])
def test_a_broken_cell_of_the_window_shows(device: str, plane: int, name: str) -> None:
    """The first and last cells of a window can be a split's only ones."""
    case = replace(CASES[name], kv_heads=2)
    whole = case.splits(device).reduced(1).view(2, -1)
    for cell in {case.cells[0], case.cells[-1]}:
        ring = case.ring
        ring[cell % case.capacity, plane, 1] = NAN
        attended = case.splits(device, ring).reduced(1).view(2, -1)
        if plane == 0:
            assert attended[1].isnan().all()
        else:
            assert attended[1].isnan().any()
        assert torch.equal(attended[0], whole[0])


@pytest.mark.gpu
@pytest.mark.parametrize("window", [512, 2_048])
def test_every_launch_gives_the_same_bits(window: int) -> None:
    case = Case(
        window=window, capacity=window + 9, position=5_000, group=8, dim=64, dtype=torch.bfloat16
    )
    first = case.splits("cuda")
    assert rms_ratio(first.reduced(1), case.expected()) < TOLERANCE[case.dtype]
    ring = case.ring
    for _ in range(50):
        again = case.splits("cuda", ring)
        assert torch.equal(again.sums, first.sums)
        assert torch.equal(again.stats, first.stats)
