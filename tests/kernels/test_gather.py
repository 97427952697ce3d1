"""Page gather against its reference, bit by bit: it moves bytes and does nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.kernels.gather import gather_pages, ref
from tests.kernels.devices import DEVICES

triton_gather = pytest.importorskip("strata.kernels.gather.triton")

Case = tuple[torch.Tensor, torch.Tensor]


def make_store(
    device: str, *, pages: int, slots: int, planes: int, shape: tuple[int, int], dtype: torch.dtype
) -> Case:
    """Return a host store (pinned for a device) and a pool on the device that holds only NaN."""
    host = torch.randn(pages * planes, *shape, generator=torch.Generator().manual_seed(7))
    pool = torch.full((slots * planes, *shape), float("nan"), dtype=dtype, device=device)
    host = host.to(dtype)
    return (host if device == "cpu" else host.pin_memory()), pool


def assert_same_bytes(a: torch.Tensor, b: torch.Tensor) -> None:
    assert torch.equal(a.cpu().view(torch.uint8), b.cpu().view(torch.uint8))


def check(
    device: str,
    store: Case,
    pages: list[int],
    slots: list[int],
    count: int | None,
    *,
    planes: int,
    int_dtype: torch.dtype = torch.int64,
) -> None:
    host, pool = store
    expected = pool.cpu().clone()
    lists = [torch.tensor(x, dtype=int_dtype) for x in (pages, slots)]
    number = None if count is None else torch.tensor([count], dtype=torch.int32)
    ref.gather_pages(host, expected, *lists, number, planes=planes)
    on_device = [x.to(device) for x in lists]
    number = None if number is None else number.to(device)
    triton_gather.gather_pages(host, pool, *on_device, number, planes=planes)
    assert_same_bytes(pool, expected)


@pytest.mark.parametrize("device", DEVICES)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_lists_leave_the_bytes_of_the_reference(device: str, data: st.DataObject) -> None:
    num_pages, num_slots = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 9))
    slots = data.draw(
        st.lists(st.integers(0, num_slots - 1), unique=True, max_size=num_slots), label="slots"
    )
    slots = [s if data.draw(st.booleans()) else -1 for s in slots]
    pages = data.draw(
        st.lists(st.integers(0, num_pages - 1), min_size=len(slots), max_size=len(slots))
    )
    count = data.draw(st.none() | st.integers(0, len(slots) + 2), label="count")
    store = make_store(
        device, pages=num_pages, slots=num_slots, planes=2, shape=(3, 16), dtype=torch.bfloat16
    )
    int_dtype = data.draw(st.sampled_from([torch.int32, torch.int64]))
    check(device, store, pages, slots, count, planes=2, int_dtype=int_dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("planes", "shape"),
    [(2, (1, 16)), (2, (16, 64)), (6, (3, 48)), (4, (64, 20)), (2, (5, 19))],
)
def test_pages_of_any_size(
    device: str, planes: int, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    store = make_store(device, pages=7, slots=5, planes=planes, shape=shape, dtype=dtype)
    check(device, store, [6, 0, 3, 3], [4, 0, -1, 2], 4, planes=planes)


@pytest.mark.parametrize("device", DEVICES)
def test_more_pages_than_programs(device: str) -> None:
    number = triton_gather.MAX_PROGRAMS + 45
    store = make_store(
        device, pages=number, slots=number, planes=2, shape=(1, 16), dtype=torch.float32
    )
    order = torch.randperm(number, generator=torch.Generator().manual_seed(1)).tolist()
    check(device, store, list(range(number)), order, number - 3, planes=2)
    check(device, store, list(range(number)), order, None, planes=2)


def test_a_cpu_takes_the_reference() -> None:
    host, pool = make_store("cpu", pages=3, slots=2, planes=2, shape=(2, 16), dtype=torch.float32)
    gather_pages(host, pool, torch.tensor([2, 1]), torch.tensor([1, 0]), planes=2)
    assert torch.equal(pool, host[[2, 3, 4, 5]])


@pytest.mark.gpu
def test_a_captured_copy_reads_lists_and_count_at_replay() -> None:
    host, pool = make_store(
        "cuda", pages=64, slots=32, planes=2, shape=(16, 64), dtype=torch.bfloat16
    )
    pages = torch.zeros(16, dtype=torch.int64, device="cuda")
    slots = torch.arange(16, device="cuda")
    count = torch.zeros(1, dtype=torch.int32, device="cuda")
    gather_pages(host, pool, pages, slots, count, planes=2)  # compiles outside of the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gather_pages(host, pool, pages, slots, count, planes=2)
    for replay in range(4):
        generator = torch.Generator().manual_seed(replay)
        pages.copy_(torch.randint(0, 64, (16,), generator=generator))
        slots.copy_(torch.randperm(32, generator=generator)[:16])
        count.fill_(replay * 5)
        expected = pool.cpu()
        ref.gather_pages(host, expected, pages.cpu(), slots.cpu(), count.cpu(), planes=2)
        graph.replay()
        assert_same_bytes(pool, expected)
