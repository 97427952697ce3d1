"""Append in plain torch; what it means is said in the package's `append_cells`."""

from __future__ import annotations

import torch


def append_cells(
    cells: torch.Tensor,
    host: torch.Tensor,
    host_rows: torch.Tensor,
    pool: torch.Tensor | None = None,
    pool_rows: torch.Tensor | None = None,
) -> None:
    """Write the rows to the host store, then to the pool."""
    dim = cells.shape[-1]
    flat = cells.reshape(-1, dim)
    rows = host_rows.to(host.device, torch.int64)
    host.view(-1, dim).index_copy_(0, rows, flat.to(host.device))
    if pool is not None and pool_rows is not None:
        kept = (pool_rows >= 0).nonzero()[:, 0]
        pool.view(-1, dim).index_copy_(0, pool_rows[kept].long(), flat[kept])
