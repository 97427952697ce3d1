"""Move K/V on a GPU: kernels read and write the pinned host store by its own address.

Nothing waits for the host. Whoever reads the host store on the CPU must synchronise first.
"""

from __future__ import annotations

import torch

from strata.kernels.append import append_cells
from strata.kernels.gather import gather_pages
from strata.kv.transfer import Transfer


class PagedTransfer(Transfer):
    """A Transfer whose moves are one kernel each."""

    def bring_in(self, layer: int, pages: torch.Tensor, slots: torch.Tensor) -> None:
        """Copy whole `pages` [N] from the host store into `slots` [N]."""
        gather_pages(self.host[layer], self.pool[layer], pages, slots, planes=self.geometry.planes)

    def append(
        self, layer: int, cells: torch.Tensor, host_rows: torch.Tensor, pool_rows: torch.Tensor
    ) -> None:
        """Write new `cells` [R, 2, K, D] through to the host store and to their slots."""
        append_cells(cells, self.host[layer], host_rows, self.pool[layer], pool_rows)

    def write_host(self, layer: int, flat: torch.Tensor, host_rows: torch.Tensor) -> None:
        """Write `flat` [R * planes, D] to `host_rows` of the host store."""
        append_cells(flat, self.host[layer], host_rows)
