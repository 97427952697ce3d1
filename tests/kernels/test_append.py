"""Append against its reference: both stores get the new cells, nothing else changes."""

from __future__ import annotations

import pytest
import torch

from strata.kernels.append import append_cells, ref
from tests.kernels.devices import DEVICES

triton_append = pytest.importorskip("strata.kernels.append.triton")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dim", [16, 20, 64, 128])
@pytest.mark.parametrize("rows", [1, 3, 8, 63])
def test_host_and_pool_get_the_new_cells(
    device: str, dtype: torch.dtype, dim: int, rows: int
) -> None:
    torch.manual_seed(rows + dim)
    kv_heads = 3
    count = rows * 2 * kv_heads
    packed = torch.randn(rows, 2 * kv_heads + 2, dim).to(dtype)
    cells = packed[:, 2:].unflatten(1, (2, kv_heads))  # rows apart, as a projection leaves them
    host = torch.full((2 * count, 1, dim), float("nan"), dtype=dtype)
    pool = torch.full((count + 5, 1, dim), float("nan"), dtype=dtype)
    host_rows = torch.randperm(len(host))[:count]
    pool_rows = torch.randperm(len(pool))[:count]
    pool_rows[::4] = -1
    expected_host, expected_pool = host.clone(), pool.clone()
    ref.append_cells(cells, expected_host, host_rows, expected_pool, pool_rows)
    assert not torch.equal(expected_host[host_rows[:1]], host[host_rows[:1]])

    if device == "cuda":
        host = host.pin_memory()
    pool = pool.to(device)
    on_device = [t.to(device) for t in (cells, host_rows, pool_rows)]
    triton_append.append_cells(on_device[0], host, on_device[1], pool, on_device[2])
    if device == "cuda":
        torch.cuda.synchronize()
    for got, expected in ((host, expected_host), (pool.cpu(), expected_pool)):
        assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("device", DEVICES)
def test_without_a_pool_only_the_host_is_written(device: str) -> None:
    cells = torch.randn(5, 2, 1, 32)
    host = torch.full((12, 1, 32), float("nan"))
    rows = torch.tensor([11, 3, 0, 7, 8, 1, 2, 10, 5, 6])
    expected = host.clone()
    ref.append_cells(cells, expected, rows)
    if device == "cuda":
        host = host.pin_memory()
    triton_append.append_cells(cells.to(device), host, rows.to(device))
    if device == "cuda":
        torch.cuda.synchronize()
    assert torch.equal(host.view(torch.uint8), expected.view(torch.uint8))


def test_a_cpu_takes_the_reference() -> None:
    host, pool = torch.zeros(4, 1, 16), torch.zeros(2, 1, 16)
    cells = torch.randn(2, 1, 1, 16)
    append_cells(cells, host, torch.tensor([3, 1]), pool, torch.tensor([-1, 0]))
    assert torch.equal(host[[3, 1]], cells.view(2, 1, 16))
    assert torch.equal(pool[0], cells[1, 0])
    assert not pool[1].any()
