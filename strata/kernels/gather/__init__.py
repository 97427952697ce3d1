"""Copy whole pages from the host store into slots of the pool.

Shapes: P pages of the host store, S slots, N listed entries, C cells a page, D head dimension;
a page is `planes` consecutive [C, D] planes. `README.md` has the layout and the bytes moved.
"""

from __future__ import annotations

import torch

from strata.kernels import device
from strata.kernels.gather import ref

__all__ = ["gather_pages"]


def gather_pages(
    host: torch.Tensor,
    pool: torch.Tensor,
    pages: torch.Tensor,
    slots: torch.Tensor,
    count: torch.Tensor | None = None,
    *,
    planes: int,
) -> None:
    """Copy pages `pages` [N] of `host` [P * planes, C, D] into `slots` [N] of `pool` in place.

    `pool` [S * planes, C, D] is written; nothing else is. Only the first `count` entries are
    valid (an int tensor of one element on the pool's device, read there when the copy runs, so
    that a captured graph may change it between replays); None means all N. An entry with a
    negative slot is skipped. Slots must be distinct. On a GPU `host` is pinned, the kernel reads
    it over the bus, and nothing is copied through a temporary or waits for the host.
    """
    assert host.shape[1:] == pool.shape[1:], "host store and pool have pages of one shape"
    assert pages.shape == slots.shape, "one slot a page"
    if device.has_kernels(pool):
        from strata.kernels.gather import triton

        triton.gather_pages(host, pool, pages, slots, count, planes=planes)
    else:
        ref.gather_pages(host, pool, pages, slots, count, planes=planes)
