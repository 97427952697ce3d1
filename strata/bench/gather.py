"""Page gather in a captured graph, beside a plain copy of pinned memory in the same run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from strata.bench.timing import Timing, capture, time_calls
from strata.errors import SelfCheckError
from strata.kernels.gather import gather_pages, ref

CALLS = 12
"""Calls a graph, each with a list of its own."""
LISTED_PAGES = 128
"""Entries that a call lists at least: what a verify window may miss; the count says how many are
valid, so that a call of few pages has the grid of a window."""
HOST_BYTES = 256 << 20
"""Host store at least: far more than a cache holds."""
PLAIN_BYTES = 64 << 20
PLANES, HEAD_DIM = 2, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherFigure:
    """One page size and number of pages a call."""

    page_bytes: int
    pages: int
    timing: Timing

    @property
    def gb_per_s(self) -> float:
        """Return 10^9 bytes a second over the bus."""
        return self.page_bytes * self.pages / self.timing.us / 1e3


def plain_copy_gb_per_s(samples: int) -> float:
    """Return the bandwidth of one large copy from pinned memory; its launch does not show."""
    host = torch.zeros(PLAIN_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(PLAIN_BYTES, dtype=torch.uint8, device="cuda")

    def copy() -> None:
        target.copy_(host, non_blocking=True)

    return PLAIN_BYTES / time_calls(copy, calls=1, samples=samples).us / 1e3


def measure_gather(page_bytes: list[int], pages: list[int], samples: int) -> Iterator[GatherFigure]:
    """Yield a figure for each page size and number of pages a call.

    Raises SelfCheckError, before any figure of a page size, if its gather does not leave the
    bytes of the reference.
    """
    for size in page_bytes:
        store = _Store(size, max(*pages, LISTED_PAGES))
        store.check()
        for number in pages:
            graph = store.capture(number)
            timing = time_calls(graph.replay, calls=CALLS, samples=samples)
            yield GatherFigure(page_bytes=size, pages=number, timing=timing)


class _Store:
    """A host store and a pool of pages of one size, with `CALLS` lists of pages."""

    def __init__(self, page_bytes: int, listed: int) -> None:
        page = (page_bytes // (2 * PLANES * HEAD_DIM), HEAD_DIM)  # bfloat16
        host_pages = max(HOST_BYTES // page_bytes, 2 * listed)
        generator = torch.Generator().manual_seed(page_bytes)
        words = torch.randint(
            -(1 << 15), 1 << 15, (host_pages * PLANES, *page), dtype=torch.int16,
            generator=generator,
        )  # fmt: skip
        self._host = words.view(torch.bfloat16).pin_memory()
        self._pool = torch.zeros(listed * PLANES, *page, dtype=torch.bfloat16, device="cuda")
        self._pages = torch.stack(
            [torch.randperm(host_pages, generator=generator)[:listed] for _ in range(CALLS)]
        ).cuda()
        self._slots = torch.randperm(listed, generator=generator).cuda()
        self._count = torch.zeros(1, dtype=torch.int32, device="cuda")

    def check(self) -> None:
        """Compare one gather with the reference, byte by byte."""
        self._count.fill_(len(self._slots) - 1)
        expected = self._pool.clone()
        lists = (self._pages[0], self._slots, self._count)
        ref.gather_pages(self._host, expected, *lists, planes=PLANES)
        gather_pages(self._host, self._pool, *lists, planes=PLANES)
        if not torch.equal(expected.view(torch.int16), self._pool.view(torch.int16)):
            raise SelfCheckError(
                "the gather kernel does not agree with its reference, so no speed is printed; "
                "run the tests of strata/kernels/gather"
            )

    def capture(self, pages: int) -> torch.cuda.CUDAGraph:
        """Return a graph of `CALLS` gathers of `pages` pages each."""
        listed = max(pages, LISTED_PAGES)
        self._count.fill_(pages)

        def body() -> None:
            for row in self._pages:
                gather_pages(
                    self._host, self._pool, row[:listed], self._slots[:listed], self._count,
                    planes=PLANES,
                )  # fmt: skip

        return capture(body)
