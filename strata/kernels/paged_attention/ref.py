"""Paged attention in plain torch, float32; what it means is said in the package's contracts."""

from __future__ import annotations

import torch


def attend_dense(
    q: torch.Tensor,
    pool: torch.Tensor,
    host: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Gather every page up to the last position once; each row masks its own."""
    num_pages = int(positions.max()) // pool.shape[1] + 1
    pages = torch.arange(num_pages, device=q.device).expand(len(q), -1)
    return attend_selected(q, pool, host, table, positions, pages)


def attend_selected(
    q: torch.Tensor,
    pool: torch.Tensor,
    host: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    pages: torch.Tensor,
) -> torch.Tensor:
    """Gather a row's pages, drop what lies behind its position, attend, row by row."""
    rows, kv_heads, _, dim = q.shape
    cells = torch.arange(pool.shape[1], device=q.device)
    out = []
    for query, position, listed in zip(q.float(), positions, pages, strict=True):
        listed = listed[listed * len(cells) <= position].long()
        kv = _fetch(pool, host, table, listed, 2 * kv_heads).float()
        # [n, 2K, C, D] -> [2, K, n * C, D], only the readable cells
        kv = kv.view(-1, 2, kv_heads, *pool.shape[1:]).permute(1, 2, 0, 3, 4).flatten(2, 3)
        readable = (listed[:, None] * len(cells) + cells).flatten() <= position
        keys, values = kv[:, :, readable]
        weights = (query @ keys.transpose(1, 2) * dim**-0.5).softmax(-1)  # [K, G, n]
        out.append((weights @ values).flatten())
    return torch.stack(out).to(q.dtype).view(rows, -1)


def _fetch(
    pool: torch.Tensor, host: torch.Tensor, table: torch.Tensor, pages: torch.Tensor, planes: int
) -> torch.Tensor:
    """Return `pages` [n] from where they lie as [n, planes, C, D]."""
    slots = table[pages].long()
    out = pool.view(-1, planes, *pool.shape[1:]).index_select(0, slots.clamp_min(0))
    away = (slots < 0).nonzero()[:, 0]
    source = pages[away].to(host.device)
    in_place = host.view(-1, planes, *pool.shape[1:]).index_select(0, source).to(pool.device)
    return out.index_copy_(0, away, in_place)
