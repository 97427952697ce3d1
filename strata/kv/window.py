"""The rows of one verify window: positions, pages, and where their new cells go."""

from __future__ import annotations

from dataclasses import dataclass

import torch

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
    )
