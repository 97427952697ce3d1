"""Attend over the pages of a window: the device decides how they are read, once a session.

Both readers give the same attention; `make_stores` chooses.
"""

from __future__ import annotations

from typing import Protocol

import torch

from strata.kernels import device
from strata.kernels.attention import attend
from strata.kernels.paged_attention import attend_dense, attend_selected, supports
from strata.kv.geometry import KvGeometry
from strata.kv.paged import PagedTransfer
from strata.kv.transfer import GatherPlan, Transfer
from strata.kv.window import Window


class Reader(Protocol):
    """Read pages where the page table [L, P] says they lie."""

    def open(self, window: Window) -> None:
        """Prepare for the rows of `window`."""

    def plan_dense(self, pages: int) -> list[int]:
        """Prepare to read pages 0 .. `pages` - 1 of every layer; return how many lie in place.

        Holds until a page of the table moves.
        """

    def dense(self, layer: int, q: torch.Tensor, window: Window) -> torch.Tensor:
        """Return the attention of `q` [R, K, G, D] over all planned pages as [R, K * G * D]."""

    def selected(
        self, layer: int, q: torch.Tensor, pages: torch.Tensor, window: Window
    ) -> torch.Tensor:
        """Return the attention of `q`, row r over `pages`[r] ([R, M], ascending)."""


class GatherReader:
    """Gather pages into a temporary and attend with torch; the CPU's way."""

    def __init__(self, transfer: Transfer, table: torch.Tensor) -> None:
        self._transfer = transfer
        self._table = table
        self._plans: list[GatherPlan] = []
        self._mask: torch.Tensor | None = None  # dense [1, R, n]; selected [R, 1, M * C]

    def open(self, window: Window) -> None:
        """Lay out the mask, the same for every layer."""
        self._mask = _mask(self._transfer.geometry, window)

    def plan_dense(self, pages: int) -> list[int]:
        """Look every page up once, for as many windows as the plan holds."""
        every = torch.arange(pages, device=self._table.device)
        self._plans = [self._transfer.plan(every, row[:pages].long()) for row in self._table]
        return [plan.pages_in_place for plan in self._plans]

    def dense(self, layer: int, q: torch.Tensor, window: Window) -> torch.Tensor:
        """Gather once for all rows."""
        kv = self._transfer.gather(layer, self._plans[layer])[:, :, : window.end]
        return attend(q[None], kv[None, 0], kv[None, 1], self._mask)

    def selected(
        self, layer: int, q: torch.Tensor, pages: torch.Tensor, window: Window
    ) -> torch.Tensor:
        """Gather each row's pages."""
        slots = self._table[layer].index_select(0, pages.flatten()).long().view_as(pages)
        kv = self._transfer.gather(layer, self._transfer.plan(pages, slots), window.rows)
        return attend(q[:, None], kv[:, 0], kv[:, 1], self._mask)


class PagedReader:
    """Read every page where it lies, through kernels; there is no temporary and no mask."""

    def __init__(self, transfer: Transfer, table: torch.Tensor) -> None:
        self._transfer = transfer
        self._table = table
        count = transfer.geometry.select_pages
        self._first = torch.arange(count, device=table.device)

    def open(self, window: Window) -> None:
        """Do nothing: positions say what a row may read."""

    def plan_dense(self, pages: int) -> list[int]:
        """Count what has no slot."""
        counts: list[int] = (self._table[:, :pages] < 0).sum(1).tolist()
        return counts

    def dense(self, layer: int, q: torch.Tensor, window: Window) -> torch.Tensor:
        """Read all pages; a session that selects does so as a list, like its deeper windows.

        So a row has the same bits whichever side of that border the window's last row is on.
        """
        if len(self._first):
            return self.selected(layer, q, self._first.expand(window.rows, -1), window)
        pages = (window.end - 1) // self._transfer.geometry.page_cells + 1
        t = self._transfer
        args = (q, t.pool[layer], t.host[layer], self._table[layer], window.positions)
        return attend_dense(*args, max_pages=pages)

    def selected(
        self, layer: int, q: torch.Tensor, pages: torch.Tensor, window: Window
    ) -> torch.Tensor:
        """Read each row's pages."""
        t = self._transfer
        args = (q, t.pool[layer], t.host[layer], self._table[layer], window.positions)
        return attend_selected(*args, pages)


def make_stores(
    geometry: KvGeometry, pool: torch.Tensor, host: torch.Tensor, table: torch.Tensor
) -> tuple[Transfer, Reader]:
    """Return what moves and what reads K/V on the pool's device."""
    if device.has_kernels(pool) and supports(head_dim=geometry.head_dim, dtype=geometry.dtype):
        transfer: Transfer = PagedTransfer(geometry, pool, host)
        return transfer, PagedReader(transfer, table)
    transfer = Transfer(geometry, pool, host)
    return transfer, GatherReader(transfer, table)


def _mask(g: KvGeometry, window: Window) -> torch.Tensor | None:
    """Return 0 where a row may read and minus infinity where it may not."""
    positions = window.positions
    if window.dense and window.rows == 1:
        return None
    if window.dense:
        readable = torch.arange(window.end, device=positions.device) <= positions[:, None]
        readable = readable[None]
    else:
        cells = torch.arange(g.select_pages * g.page_cells, device=positions.device)
        # A row's own page is the last that it selected, or its own number where all are read.
        unread = (window.pages - (g.select_pages - 1)).clamp_min(0)
        last = positions - unread * g.page_cells
        readable = (cells <= last[:, None])[:, None]
    return torch.zeros(readable.shape, dtype=g.dtype, device=positions.device).masked_fill_(
        ~readable, -torch.inf
    )
