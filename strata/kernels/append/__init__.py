"""Write new cells through to the host store and to the slots of their pages.

Shapes: N rows of one head's K or V (R * planes in the decode path), D head dimension. `README.md`
has the layout and the bytes moved.
"""

from __future__ import annotations

import torch

from strata.kernels import device
from strata.kernels.append import ref

__all__ = ["append_cells"]


def append_cells(
    cells: torch.Tensor,
    host: torch.Tensor,
    host_rows: torch.Tensor,
    pool: torch.Tensor | None = None,
    pool_rows: torch.Tensor | None = None,
) -> None:
    """Write `cells` [..., D], N rows in all, to row `host_rows` [N] of `host` [..., D] in place.

    With `pool` [..., D] also to `pool_rows` [N] of it, where negative rows are left out. Rows are
    counted over all leading dimensions; those of one list are distinct. On a GPU `host` is
    pinned and both are written by one kernel, without waiting for the host: a reader on the CPU
    must synchronise first, one on the same stream need not.
    """
    assert (pool is None) == (pool_rows is None), "a pool comes with its rows"
    if device.has_kernels(cells):
        from strata.kernels.append import triton

        triton.append_cells(cells, host, host_rows, pool, pool_rows)
    else:
        ref.append_cells(cells, host, host_rows, pool, pool_rows)
