"""Page gather in plain torch; what it means is said in the package's `gather_pages`."""

from __future__ import annotations

import torch


def gather_pages(
    host: torch.Tensor,
    pool: torch.Tensor,
    pages: torch.Tensor,
    slots: torch.Tensor,
    count: torch.Tensor | None = None,
    *,
    planes: int,
) -> None:
    """Copy through a temporary; `count` is read by the host."""
    valid = len(pages) if count is None else min(int(count), len(pages))
    wanted = (slots[:valid] >= 0).nonzero()[:, 0]
    source = pages[wanted].to(host.device, torch.int64)
    page = (-1, planes, *pool.shape[1:])
    moved = host.view(page).index_select(0, source).to(pool.device)
    pool.view(page).index_copy_(0, slots[wanted].long(), moved)
