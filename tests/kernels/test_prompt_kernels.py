"""The kernels of a prompt against their references; outputs begin as NaN."""

from __future__ import annotations

import pytest
import torch

from strata.kernels import attention, grouped, project, select
from strata.kernels.attention import ref as attention_ref
from strata.kernels.grouped import ref as grouped_ref
from strata.kernels.project import ref as project_ref
from strata.kernels.select import ref as select_ref
from tests.kernels.devices import DEVICES, rms_ratio

attention_triton = pytest.importorskip("strata.kernels.attention.triton")
grouped_triton = pytest.importorskip("strata.kernels.grouped.triton")
project_triton = pytest.importorskip("strata.kernels.project.triton")
select_triton = pytest.importorskip("strata.kernels.select.triton")

NAN = float("nan")
TYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
EPS = 1e-6


def poisoned(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, NAN, dtype=dtype, device=device)


def paged(cells: torch.Tensor, page_cells: int) -> torch.Tensor:
    """Return `cells` [n, 2K, D] as pages [P, 2K, C, D], NaN where there is no cell."""
    count, planes, dim = cells.shape
    pages = poisoned(
        -(-count // page_cells),
        page_cells,
        planes,
        dim,
        device=str(cells.device),
        dtype=cells.dtype,
    )
    pages.view(-1, planes, dim)[:count] = cells
    return pages.transpose(1, 2).contiguous()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("kv_heads", "group", "dim", "page_cells", "past", "rows"),
    [
        (1, 8, 64, 16, 128, 40),
        (2, 3, 24, 10, 192, 75),
        (1, 1, 16, 1, 0, 1),
        (1, 5, 32, 100, 64, 63),
    ],
)
def test_rows_attend_to_their_past_however_it_is_cut(
    device: str,
    dtype: torch.dtype,
    kv_heads: int,
    group: int,
    dim: int,
    page_cells: int,
    past: int,
    rows: int,
) -> None:
    torch.manual_seed(rows)
    end = past + rows
    cells = torch.randn(end, 2 * kv_heads, dim, dtype=dtype, device=device)
    q = torch.randn(rows, kv_heads * group, dim, dtype=dtype, device=device)
    pages = paged(cells, page_cells)

    def read(cuts: list[int], run: object) -> torch.Tensor:
        sums = poisoned(*q.shape, device=device)
        stats = poisoned(*q.shape[:2], 2, device=device)
        out = q.clone()
        for start, stop in zip([0, *cuts], [*cuts, end], strict=True):
            first = start // page_cells
            run(  # type: ignore[operator]
                out,
                pages[first : -(-stop // page_cells)].contiguous(),
                first_position=past,
                first_cell=first * page_cells,
                cells=range(start, stop),
                sums=sums,
                stats=stats,
                last=stop == end,
                out=out,
            )
        return out

    expected = read([], attention_ref.attend_prompt)
    cuts = list(range(64, past + 1, 64))
    torch.testing.assert_close(read(cuts, attention_ref.attend_prompt), expected, **_close(dtype))
    got = read([], attention_triton.attend_prompt)
    assert rms_ratio(got, expected) < TOLERANCE[dtype]
    for some in (cuts, cuts[-1:], cuts[:1]):
        assert torch.equal(read(some, attention_triton.attend_prompt), got)


def _close(dtype: torch.dtype) -> dict[str, float]:
    return {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("rows", "hidden", "heads", "kv_heads", "dim"), [(70, 96, 4, 1, 32), (3, 40, 6, 2, 24)]
)
def test_projections_are_the_references(
    device: str, dtype: torch.dtype, rows: int, hidden: int, heads: int, kv_heads: int, dim: int
) -> None:
    torch.manual_seed(rows)
    page_cells, position = 10, 100_003

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    x, norm, head_norm = draw(rows, hidden), draw(hidden), draw(heads + kv_heads, dim)
    weight = draw((heads + 2 * kv_heads) * dim, hidden) / hidden**0.5
    rates = 1.0 / 10_000 ** (torch.arange(0, dim, 2, device=device) / dim)
    results = []
    for module in (project_ref, project_triton):
        turns = poisoned(rows, 2, dim // 2, device=device, dtype=dtype)
        module.write_turns(rates, position, turns)
        q = poisoned(rows, heads, dim, device=device, dtype=dtype)
        pages = torch.zeros(9, 2 * kv_heads, page_cells, dim, device=device, dtype=dtype)
        for part in (range(heads), range(heads, heads + 2 * kv_heads)):
            module.project_heads(
                x, norm, weight, head_norm, turns, EPS, q=q, pages=pages, heads=part,
                offset=3,
            )  # fmt: skip
        wide = poisoned(rows, 2 * hidden, device=device, dtype=dtype)
        index = torch.arange(rows, device=device).flip(0)
        module.norm_rows(x, norm, EPS, out=wide[:, hidden:], index=index)
        sums = draw(rows, 50).fill_(0.5)
        module.write_product(x, weight[:50], sums, add=True)
        plain = poisoned(rows, 50, device=device, dtype=dtype)
        module.write_product(x, weight[:50], plain, add=False)
        results.append((turns, q, pages, wide[:, hidden:], sums, plain))
    for expected, got in zip(*results, strict=True):
        assert rms_ratio(got, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("rows", "hidden", "experts", "count", "width"),
    [(100, 64, 8, 2, 32), (1, 40, 5, 5, 20), (63, 48, 48, 4, 16), (40, 32, 300, 3, 16)],
)
def test_experts_are_the_references(
    device: str, dtype: torch.dtype, rows: int, hidden: int, experts: int, count: int, width: int
) -> None:
    torch.manual_seed(experts)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    x, norm, router = draw(rows, hidden), draw(hidden), draw(experts, hidden)
    blobs = draw(experts, 3 * width, hidden) / hidden**0.5
    ids = torch.full((rows, count), -1, dtype=torch.int32, device=device)
    shares, normed = (poisoned(rows, n, device=device, dtype=dtype) for n in (count, hidden))
    routed = {"normed": normed, "ids": ids, "weights": shares}
    grouped_triton.norm_and_route(x, norm, router, EPS, normalise=True, **routed)
    wanted = {name: torch.zeros_like(tensor) for name, tensor in routed.items()}
    grouped_ref.norm_and_route(x, norm, router, EPS, normalise=True, **wanted)
    assert rms_ratio(normed, wanted["normed"]) < TOLERANCE[dtype]
    if dtype == torch.float32:  # rounded scores may tie, and a sum's last bit decides
        assert torch.equal(ids, wanted["ids"])
        assert rms_ratio(shares, wanted["weights"]) < TOLERANCE[dtype]
    order = torch.full((rows * count,), -1, dtype=torch.int32, device=device)
    starts = torch.full((experts + 1,), -1, dtype=torch.int32, device=device)
    grouped_triton.sort_pairs(ids, order=order, starts=starts)
    expected_order, expected_starts = torch.empty_like(order), torch.empty_like(starts)
    grouped_ref.sort_pairs(ids, order=expected_order, starts=expected_starts)
    assert torch.equal(order, expected_order)
    assert torch.equal(starts, expected_starts)
    results = []
    for module in (grouped_ref, grouped_triton):
        out = x.clone()
        inner = poisoned(rows * count, width, device=device, dtype=dtype)
        parts = poisoned(rows * count, hidden, device=device, dtype=dtype)
        module.add_experts(
            normed, blobs, shares, order=order, starts=starts, inner=inner, parts=parts, x=out
        )
        results.append(out)
    assert rms_ratio(results[1], results[0]) < TOLERANCE[dtype]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("start", "stop"), [(0, 7), (16, 40), (13, 45), (14, 15)])
def test_bounds_of_a_piece_are_the_references(device: str, start: int, stop: int) -> None:
    torch.manual_seed(start)
    keys = torch.randn(stop, 4, 16, device=device)
    first = start // 8
    pages = paged(keys, 8)[first:].contiguous()
    results = []
    for module in (select_ref, select_triton):
        bounds = torch.zeros(2, 9, 32, device=device)
        module.bound_pages(bounds, pages, first_page=first, cells=range(start, stop))
        results.append(bounds)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[1][:, : start // 8], torch.zeros(2, start // 8, 32, device=device))


def test_packages_choose_by_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    for package, module, name in (
        (attention, attention_ref, "attend_prompt"),
        (project, project_ref, "norm_rows"),
        (grouped, grouped_ref, "sort_pairs"),
        (select, select_ref, "bound_pages"),
    ):
        monkeypatch.setattr(module, name, lambda *_, name=name, **__: seen.append(name))
        x = torch.zeros(1, 1)
        if name == "attend_prompt":
            at = {"first_position": 0, "first_cell": 0, "cells": range(1), "last": True}
            package.attend_prompt(x, x, **at, sums=x, stats=x, out=x)
        elif name == "norm_rows":
            package.norm_rows(x, x, EPS, out=x)
        elif name == "sort_pairs":
            package.sort_pairs(x, order=x, starts=x)
        else:
            package.bound_pages(x, x, first_page=0, cells=range(1))
    assert seen == ["attend_prompt", "norm_rows", "sort_pairs", "bound_pages"]
