"""Paged attention against its reference, and what must leave no trace in a row's bits.

Interpreted products of one shape may differ with a row's place in the tile, so that rows are
compared bit by bit there only at the same place; on a device at every place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from strata.kernels.paged_attention import attend_dense, ref, supports
from tests.kernels.devices import DEVICES, rms_ratio

triton_attention = pytest.importorskip("strata.kernels.paged_attention.triton")

TOLERANCE = {torch.float32: 5e-6, torch.bfloat16: 1e-2}
NAN = float("nan")
PLACEMENTS = ("resident", "in place", "mixed")
BROKEN = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
"""The interpreter's arithmetic warns where it meets a NaN, which is what is tested."""


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every tensor that nobody wrote hold NaN."""
    empty: Callable[..., torch.Tensor] = torch.empty

    def poisoned(*size: Any, **kwargs: Any) -> torch.Tensor:
        out = empty(*size, **kwargs)
        return out.fill_(NAN) if out.is_floating_point() else out

    monkeypatch.setattr(torch, "empty", poisoned)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call: queries, both stores (NaN where no cell was written), table and positions."""

    q: torch.Tensor
    pool: torch.Tensor
    host: torch.Tensor
    table: torch.Tensor
    positions: torch.Tensor
    pages: torch.Tensor | None = None

    @property
    def planes(self) -> int:
        return 2 * self.q.shape[1]

    def rows(self, first: int, end: int) -> Case:
        """Return the case of rows `first` .. `end` - 1 alone."""
        pages = None if self.pages is None else self.pages[first:end]
        cut = slice(first, end)
        return replace(self, q=self.q[cut], positions=self.positions[cut], pages=pages)

    def with_content(self, source: Case) -> Case:
        """Return `source`, all in place, with its pages placed as they are here."""
        host = source.host.unflatten(0, (-1, self.planes)).clone()
        pool = torch.full_like(self.pool, NAN).unflatten(0, (-1, self.planes))
        kept = (self.table >= 0).nonzero()[:, 0]
        pool[self.table[kept].long()] = host[kept]
        host[kept] = NAN
        return replace(source, table=self.table, pool=pool.flatten(0, 1), host=host.flatten(0, 1))

    def reference(self) -> torch.Tensor:
        args = (self.q, self.pool, self.host, self.table, self.positions)
        if self.pages is None:
            return ref.attend_dense(*args)
        return ref.attend_selected(*args, self.pages)

    def run(self, device: str, max_pages: int | None = None) -> torch.Tensor:
        q, pool, table, positions = (
            t.to(device) for t in (self.q, self.pool, self.table, self.positions)
        )
        host = self.host.pin_memory() if device == "cuda" else self.host
        args = (q, pool, host, table, positions)
        if self.pages is None:
            out = triton_attention.attend_dense(*args, max_pages=max_pages or len(table))
        else:
            out = triton_attention.attend_selected(*args, self.pages.to(device))
        return out.cpu()


def make_case(
    *,
    cells: int,
    page_cells: int,
    rows: int = 1,
    kv_heads: int = 1,
    group: int = 2,
    dim: int = 16,
    dtype: torch.dtype = torch.float32,
    placement: str = "mixed",
    selected: int | None = None,
    spare_pages: int = 2,
) -> Case:
    """Return a case whose last row is at cell `cells` - 1; a resident page has no host copy."""
    generator = torch.Generator().manual_seed(cells * 64 + page_cells)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    planes, used = 2 * kv_heads, -(-cells // page_cells)
    num_pages = used + spare_pages
    content = normal(num_pages, planes, page_cells, dim)
    behind = torch.arange(num_pages * page_cells).view(num_pages, page_cells) >= cells
    content.masked_fill_(behind[:, None, :, None], NAN)
    order = torch.randperm(used, generator=generator)
    kept = order[: {"resident": used, "in place": 0, "mixed": (used + 1) // 2}[placement]]
    slots = torch.randperm(used + 1, generator=generator)[: len(kept)]
    table = torch.full((num_pages,), -1, dtype=torch.int32)
    table[kept] = slots.int()
    pool = torch.full((used + 1, planes, page_cells, dim), NAN, dtype=dtype)
    pool[slots] = content[kept]
    host = content.clone()
    host[kept] = NAN
    positions = torch.arange(cells - rows, cells)
    pages = None
    if selected is not None:
        lists = []
        for position in positions.tolist():
            own = position // page_cells
            older = torch.randperm(max(own - 1, 0), generator=generator)[: selected - 2] + 1
            lists.append(torch.tensor([0, *older.sort().values.tolist(), own]))
            if own + 1 < selected:
                lists[-1] = torch.arange(selected)
        pages = torch.stack(lists)
    packed = normal(rows, (group + 2) * kv_heads, dim)
    return Case(
        q=packed[:, : group * kv_heads].view(rows, kv_heads, group, dim),
        pool=pool.view(-1, page_cells, dim),
        host=host.view(-1, page_cells, dim),
        table=table,
        positions=positions,
        pages=pages,
    )


SIZES = [
    (page_cells, cells, placement, 1 + index % 8, list(TOLERANCE)[index % 2])
    for index, (page_cells, cells, placement) in enumerate(
        itertools.product((1, 3, 16), (1, 63, 100, 1000), PLACEMENTS)
    )
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("page_cells", "cells", "placement", "rows", "dtype"), SIZES)
def test_dense_agrees_with_the_reference(
    device: str, page_cells: int, cells: int, placement: str, rows: int, dtype: torch.dtype
) -> None:
    case = make_case(
        cells=cells,
        page_cells=page_cells,
        rows=min(rows, cells),
        placement=placement,
        dtype=dtype,
    )
    assert rms_ratio(case.run(device), case.reference()) < TOLERANCE[dtype]


SHAPES = [
    (1, 1, 16, 1),
    (1, 8, 64, 4),
    (3, 3, 48, 3),
    (1, 16, 32, 2),
    (1, 2, 128, 3),
    (1, 5, 20, 2),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kv_heads", "group", "dim", "rows"), SHAPES)
@pytest.mark.parametrize("selected", [None, 5])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_heads_and_dimensions(
    device: str,
    dtype: torch.dtype,
    selected: int | None,
    kv_heads: int,
    group: int,
    dim: int,
    rows: int,
) -> None:
    case = make_case(
        cells=140,
        page_cells=16,
        rows=rows,
        kv_heads=kv_heads,
        group=group,
        dim=dim,
        dtype=dtype,
        selected=selected,
    )
    assert supports(head_dim=dim, dtype=dtype, group=group)
    assert rms_ratio(case.run(device), case.reference()) < TOLERANCE[dtype]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("page_cells", "cells", "selected"),
    [(1, 100, 40), (3, 100, 33), (3, 1000, 90), (16, 1000, 20), (16, 63, 4), (64, 1000, 5)],
)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_selected_agrees_with_the_reference(
    device: str, page_cells: int, cells: int, selected: int, placement: str
) -> None:
    case = make_case(
        cells=cells, page_cells=page_cells, rows=3, placement=placement, selected=selected
    )
    assert rms_ratio(case.run(device), case.reference()) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("device", DEVICES)
def test_rows_that_have_fewer_pages_than_they_list(device: str) -> None:
    """At the border rows list pages 0 .. M - 1, some behind them and some behind the session."""
    case = make_case(cells=34, page_cells=16, rows=4, selected=9, spare_pages=0)
    dense = replace(case, pages=None)
    assert rms_ratio(case.run(device), dense.reference()) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("selected", [None, 6])
def test_where_a_page_lies_and_the_maximum_leave_no_trace(
    device: str, dtype: torch.dtype, selected: int | None
) -> None:
    in_place, mixed, resident = (
        make_case(
            cells=300, page_cells=16, rows=3, dtype=dtype, placement=placement, selected=selected
        )
        for placement in ("in place", "mixed", "resident")
    )
    expected = in_place.run(device)
    assert expected.isfinite().all()
    for case in (mixed, resident):
        assert torch.equal(case.with_content(in_place).run(device), expected)
    if selected is None:
        for max_pages in (19, 20, 200):
            assert torch.equal(in_place.run(device, max_pages), expected)


@BROKEN
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("part", ["key", "value"])
@pytest.mark.parametrize("selected", [None, 4])
def test_a_broken_cell_shows_in_the_rows_that_read_it_only(
    device: str, dtype: torch.dtype, part: str, selected: int | None
) -> None:
    case = make_case(
        cells=130, page_cells=16, rows=4, dtype=dtype, placement="resident", selected=selected
    )
    expected = case.run(device)
    assert expected.isfinite().all(), "the host copies of resident pages are NaN and unread"
    for row in (0, 2, 3):
        position = int(case.positions[row])
        plane = int(case.table[position // 16]) * 2 + (part == "value")
        for value in (NAN, float("inf"))[: 1 + (part == "value")]:
            pool = case.pool.clone()
            pool[plane, position % 16] = value
            out = replace(case, pool=pool).run(device)
            assert torch.equal(out[:row], expected[:row])
            assert not out[row].isfinite().any(), "a row reads its own cell"


@BROKEN
@pytest.mark.parametrize("device", DEVICES)
def test_a_broken_cell_far_back_shows(device: str) -> None:
    for placement in ("resident", "in place"):
        case = make_case(cells=400, page_cells=16, rows=2, placement=placement)
        store = "pool" if placement == "resident" else "host"
        broken = getattr(case, store).clone()
        page = 3 if placement == "in place" else int(case.table[3])
        broken[page * 2 + 1, 5] = NAN
        assert replace(case, **{store: broken}).run(device).isnan().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("selected", [None, 7])
def test_the_number_of_rows_leaves_no_trace(
    device: str, dtype: torch.dtype, selected: int | None
) -> None:
    # The window straddles the border of a page, of a block and of a split.
    case = make_case(cells=132, page_cells=16, rows=8, dtype=dtype, selected=selected)
    together = case.run(device)
    for rows in (1, 2, 5, 7):
        assert torch.equal(case.rows(0, rows).run(device), together[:rows])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("selected", [None, 40])
@pytest.mark.parametrize(
    ("kv_heads", "group", "dim"), [(1, 8, 64), (2, 3, 48), (4, 4, 128), (1, 16, 128)]
)
@pytest.mark.parametrize("cells", [9, 132, 1030])
def test_a_row_has_the_same_bits_at_every_place(
    dtype: torch.dtype, selected: int | None, kv_heads: int, group: int, dim: int, cells: int
) -> None:
    case = make_case(
        cells=cells,
        page_cells=16,
        rows=8,
        kv_heads=kv_heads,
        group=group,
        dim=dim,
        dtype=dtype,
        selected=selected,
    )
    together = case.run("cuda")
    for rows in range(1, 8):
        for first in range(0, 9 - rows):
            alone = case.rows(first, first + rows).run("cuda")
            assert torch.equal(alone, together[first : first + rows]), (first, rows)


@pytest.mark.gpu
@pytest.mark.parametrize("selected", [None, 40])
def test_a_captured_call_reads_lengths_and_slots_at_replay(selected: int | None) -> None:
    cases = [
        make_case(
            cells=cells,
            page_cells=16,
            rows=3,
            group=8,
            dim=64,
            dtype=torch.bfloat16,
            placement="in place",
            selected=selected,
            spare_pages=80 - -(-cells // 16),
        )
        for cells in (1200, 130, 801, 1030)
    ]
    host = cases[0].host.pin_memory()
    static = {
        name: getattr(cases[0], name).to("cuda")
        for name in ("q", "pool", "table", "positions", "pages")
        if getattr(cases[0], name) is not None
    }

    def call() -> torch.Tensor:
        args = (static["q"], static["pool"], host, static["table"], static["positions"])
        if selected is None:
            return triton_attention.attend_dense(*args, max_pages=80)
        return triton_attention.attend_selected(*args, static["pages"])

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for case in cases:
        torch.cuda.synchronize()
        host.copy_(case.host)
        for name in set(static) - {"pool"}:
            static[name].copy_(getattr(case, name))
        graph.replay()
        assert torch.equal(out.cpu(), case.run("cuda"))


def test_what_the_kernels_do_not_take_goes_to_the_reference() -> None:
    assert not supports(head_dim=8, dtype=torch.float32)
    assert not supports(head_dim=192, dtype=torch.bfloat16)
    assert not supports(head_dim=64, dtype=torch.float16)
    assert not supports(head_dim=64, dtype=torch.bfloat16, group=17)
    case = make_case(cells=20, page_cells=4, rows=2, dim=8)
    out = attend_dense(case.q, case.pool, case.host, case.table, case.positions)
    assert torch.equal(out, case.reference())


def test_the_reference_is_plain_attention() -> None:
    case = make_case(cells=50, page_cells=16, rows=3, kv_heads=2, group=3, placement="in place")
    pages = case.host.view(-1, 2, 2, 16, 16)  # [P, 2, K, C, D]
    kv = pages.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :50]
    for row, position in enumerate(case.positions.tolist()):
        expected = torch.nn.functional.scaled_dot_product_attention(
            case.q[row], kv[0, :, : position + 1], kv[1, :, : position + 1]
        )
        torch.testing.assert_close(case.reference()[row], expected.flatten())
