"""Bounds after a window: the accepted rows' keys, and nothing of the others."""

from __future__ import annotations

import pytest
import torch

from strata.kernels.select import update_bounds, widen_bounds
from tests.kernels.devices import DEVICES

triton_select = pytest.importorskip("strata.kernels.select.triton")

LAYERS, PAGES = 3, 9


def stale_bounds(kv_heads: int, dim: int) -> torch.Tensor:
    """Return bounds of every page, as a session that was rewound leaves them."""
    a, b = torch.randn(2, LAYERS, kv_heads, PAGES, dim)
    return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], -1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kv_heads", "dim", "dtype"), [(1, 64, torch.bfloat16), (2, 20, torch.float32)]
)
@pytest.mark.parametrize(("page_cells", "base"), [(16, 30), (4, 8), (2, 3), (1, 0), (16, 33)])
@pytest.mark.parametrize(("rows", "accepted"), [(1, 0), (4, 3), (8, 2), (8, 7)])
def test_every_way_gives_the_same_bits(
    device: str,
    kv_heads: int,
    dim: int,
    dtype: torch.dtype,
    page_cells: int,
    base: int,
    rows: int,
    accepted: int,
) -> None:
    torch.manual_seed(base + rows)
    before = stale_bounds(kv_heads, dim)
    cells = torch.randn(LAYERS, rows, 2, kv_heads, dim).to(dtype)
    cells[:, accepted + 1 :] = torch.nan  # a rejected row leaves no trace
    positions = base + torch.arange(rows + 3)
    expected = before.clone()
    pages = positions[: accepted + 1] // page_cells
    for page in pages[positions[: accepted + 1] % page_cells == 0].tolist():
        expected[:, :, page, :dim], expected[:, :, page, dim:] = -torch.inf, torch.inf
    update_bounds(expected, pages, cells[:, : accepted + 1, 0])
    plain = before.clone()
    widen_bounds(plain, cells, positions, torch.tensor([accepted]), page_cells=page_cells)
    assert torch.equal(plain, expected)
    got = before.to(device)
    packed = torch.full((LAYERS, rows, 3, kv_heads, dim), torch.nan, dtype=dtype, device=device)
    packed[:, :, :2] = cells.to(device)  # rows apart, as a larger buffer leaves them
    triton_select.widen_bounds(
        got,
        packed[:, :, :2],
        positions.to(device),
        torch.tensor([accepted], device=device),
        page_cells=page_cells,
    )
    assert torch.equal(got.cpu(), expected)
