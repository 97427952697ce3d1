"""The rows of one verify window: positions, pages, and where their new cells go."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strata.kv.geometry import KvGeometry
from strata.kv.transfer import Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rows `base` .. `base + rows - 1`, the same for every layer."""

    base: int
    rows: int
    positions: torch.Tensor  # [R]
    pages: torch.Tensor  # [R], each row's own page
    host_rows: torch.Tensor  # [R * planes], cell rows of the host store
    pool_rows: torch.Tensor  # [L, R * planes], cell rows of the pool
    dense: bool
    """Whether every row reads every page: no selection, or a depth that it covers."""
    mask: torch.Tensor | None  # dense [1, R, n]; selected [R, 1, M * C]

    @property
    def end(self) -> int:
        """Return the cells up to and with the last row."""
        return self.base + self.rows


def make_window(transfer: Transfer, table: torch.Tensor, base: int, rows: int) -> Window:
    """Lay out a window whose pages all have slots in `table` [L, P]."""
    g = transfer.geometry
    positions = torch.arange(base, base + rows, device=table.device)
    pages, offsets = positions // g.page_cells, positions % g.page_cells
    last_page = (base + rows - 1) // g.page_cells
    dense = g.select_pages == 0 or last_page < g.select_pages
    return Window(
        base=base,
        rows=rows,
        positions=positions,
        pages=pages,
        host_rows=transfer.cell_rows(pages, offsets),
        pool_rows=transfer.cell_rows(table.index_select(1, pages).long(), offsets),
        dense=dense,
        mask=_mask(g, positions, pages, dense=dense, end=base + rows),
    )


def _mask(
    g: KvGeometry, positions: torch.Tensor, pages: torch.Tensor, *, dense: bool, end: int
) -> torch.Tensor | None:
    """Return 0 where a row may read and minus infinity where it may not."""
    if dense and len(positions) == 1:
        return None
    if dense:
        readable = torch.arange(end, device=positions.device) <= positions[:, None]
        readable = readable[None]
    else:
        cells = torch.arange(g.select_pages * g.page_cells, device=positions.device)
        # A row's own page is the last that it selected, or its own number where all are read.
        unread = (pages - (g.select_pages - 1)).clamp_min(0)
        last = positions - unread * g.page_cells
        readable = (cells <= last[:, None])[:, None]
    return torch.zeros(readable.shape, dtype=g.dtype, device=positions.device).masked_fill_(
        ~readable, -torch.inf
    )
