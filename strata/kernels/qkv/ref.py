"""Queries and new cells in plain torch; see the package for the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from strata.lm.layers import Rotary, project_qkv
from strata.lm.weights import AttentionWeights

if TYPE_CHECKING:
    from strata.kernels.qkv import CellStore


def project_cells(
    normed: torch.Tensor,
    w: AttentionWeights,
    rotary: Rotary,
    positions: torch.Tensor,
    store: CellStore,
    *,
    eps: float,
    q: torch.Tensor,
    cells: torch.Tensor,
) -> None:
    """Write queries and cells."""
    queries, new = project_qkv(normed, w, eps, rotary.angles(positions, normed.dtype))
    q.copy_(queries)
    cells.copy_(new)
    kv_heads = cells.shape[2]
    pages, offsets = positions // store.page_cells, positions % store.page_cells
    if store.table is None:
        slots = pages % store.capacity(kv_heads)
    else:
        slots = store.table.index_select(0, pages).long()
    if store.host is not None:
        _write(store.host, pages.to(store.host.device), offsets.to(store.host.device), cells)
    kept = slots >= 0
    _write(store.pool, slots[kept], offsets[kept], cells[kept])


def _write(
    planes: torch.Tensor, pages: torch.Tensor, offsets: torch.Tensor, cells: torch.Tensor
) -> None:
    flat = cells.flatten(1, 2).to(planes.device)  # [R, 2K, D]
    of_page = pages[:, None] * flat.shape[1] + torch.arange(flat.shape[1], device=planes.device)
    planes[of_page, offsets[:, None]] = flat
