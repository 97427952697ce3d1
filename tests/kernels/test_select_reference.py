"""Page selection against brute force, and the properties that it promises."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.kernels.select import count_selected, select_pages, update_bounds
from strata.kernels.select.ref import score_pages

KV_HEADS, GROUP, DIM = 2, 3, 5


def bounds_of(keys: torch.Tensor, page_cells: int, pages: int) -> torch.Tensor:
    """Return [K, P, 2D] bounds of `keys` [n, K, D], through `update_bounds` in two pieces."""
    bounds = torch.empty(KV_HEADS, pages, 2 * DIM)
    bounds[..., :DIM], bounds[..., DIM:] = -torch.inf, torch.inf
    at = torch.arange(len(keys)) // page_cells
    cut = len(keys) // 3
    update_bounds(bounds, at[:cut], keys[:cut])
    update_bounds(bounds, at[cut:], keys[cut:])
    return bounds


def draw_case(data, *, whole: bool):
    page_cells, tail = data.draw(st.sampled_from([(1, 10), (3, 4), (16, 2)]))
    pages = data.draw(st.integers(tail + 2, tail + 14))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**16)))
    shape = (pages * page_cells, KV_HEADS, DIM)
    keys = (
        torch.randint(-1, 2, shape, generator=generator).float()
        if whole
        else torch.randn(shape, generator=generator)
    )
    rows = data.draw(st.integers(1, 8))
    q = torch.randint(-1, 2, (rows, KV_HEADS, GROUP, DIM), generator=generator).float()
    if not whole:
        q += torch.randn(q.shape, generator=generator)
    return page_cells, tail, pages, keys, q


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_bound_is_never_under_any_product(data):
    page_cells, _, pages, keys, q = draw_case(data, whole=False)
    scores = score_pages(q, bounds_of(keys, page_cells, pages))
    products = torch.einsum("rkgd,nkd->rnkg", q, keys).flatten(2).amax(-1)
    best = products.view(len(q), pages, page_cells).amax(-1)
    assert (scores >= best - 1e-4).all()


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_selection_is_brute_force_with_ties_to_the_lower_page(data):
    page_cells, tail, pages, keys, q = draw_case(data, whole=True)
    rows = len(q)
    # Rows are consecutive cells of one window that ends in the last page.
    last = pages * page_cells - 1
    own = torch.arange(last - rows + 1, last + 1) // page_cells
    count = data.draw(st.integers(1 + tail, int(own[-1]) + 1))
    bounds = bounds_of(keys, page_cells, pages)
    got = select_pages(q, bounds, own, count=count, tail=tail)
    assert got.shape == (rows, count)
    alone = [
        select_pages(q[r : r + 1], bounds, own[r : r + 1], count=count, tail=tail)[0]
        for r in range(rows)
        if int(own[r]) >= count - 1
    ]
    assert all(torch.equal(a, b) for a, b in zip(alone, got[rows - len(alone) :], strict=True)), (
        "a row's pages depend on the rows beside it"
    )
    for row, page in zip(got.tolist(), own.tolist(), strict=True):
        if page < count:
            assert row == [*range(count)]
            continue
        r = len([*row])
        assert r == len({*row}) == count
        assert row == sorted(row)
        assert row[0] == 0
        assert row[-tail:] == [*range(page - tail + 1, page + 1)]
    scores = score_pages(q, bounds)
    for r, page in enumerate(own.tolist()):
        if page < count:
            continue
        order = sorted(range(1, page - tail + 1), key=lambda p: (-float(scores[r, p]), p))
        assert got[r, 1:-tail].tolist() == sorted(order[: count - 1 - tail])


def test_a_row_never_scores_what_is_not_committed():
    """Bounds of the tail and of later pages may hold anything, also nothing."""
    keys = torch.randn(12 * 4, KV_HEADS, DIM, generator=torch.Generator().manual_seed(0))
    q = torch.randn(1, KV_HEADS, GROUP, DIM, generator=torch.Generator().manual_seed(1))
    own, tail = torch.tensor([9]), 4
    clean = bounds_of(keys, 4, 12)
    wild = clean.clone()
    wild[:, 6:] = torch.nan
    chosen = [select_pages(q, b, own, count=7, tail=tail) for b in (clean, wild)]
    assert torch.equal(*chosen)


def test_bounds_widen_only():
    keys = torch.randn(40, KV_HEADS, DIM, generator=torch.Generator().manual_seed(2))
    bounds = bounds_of(keys[:20], 8, 5)
    before = bounds.clone()
    update_bounds(bounds, torch.arange(20, 40) // 8, keys[20:])
    assert (bounds[..., :DIM] >= before[..., :DIM]).all()
    assert (bounds[..., DIM:] <= before[..., DIM:]).all()
    for page in range(5):
        mine = keys[page * 8 : page * 8 + 8]
        assert torch.equal(bounds[:, page, :DIM], mine.amax(0))
        assert torch.equal(bounds[:, page, DIM:], mine.amin(0))


def test_count_selected_counts_rows():
    pages = torch.tensor([[0, 2, 5], [0, 1, 5], [0, 2, 4]])
    counts = torch.ones(7, dtype=torch.int32)
    count_selected(pages, counts)
    assert counts.tolist() == [4, 2, 3, 1, 2, 3, 1]


@pytest.mark.parametrize("rows", [1, 8])
def test_zero_keys_tie_to_the_lowest_pages(rows):
    bounds = torch.zeros(KV_HEADS, 30, 2 * DIM)
    q = torch.randn(rows, KV_HEADS, GROUP, DIM, generator=torch.Generator().manual_seed(3))
    own = torch.full((rows,), 29)
    got = select_pages(q, bounds, own, count=6, tail=2)
    assert got.tolist() == [[0, 1, 2, 3, 28, 29]] * rows
