"""Grouped-query attention in plain torch.

Shapes: B batch of key sets (1 where all rows share one), R rows of a set, K K/V heads,
G query heads per K/V head, n cells, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Return the attention of `q` [B, R, K, G, D] over `k`, `v` [B, K, n, D] as [B * R, K * G * D].

    `mask` [B, R, n] is added to the scores (0 or minus infinity); None reads every cell. The
    rows and heads that share a K/V head are one block of queries, so keys are read once.
    """
    batch, rows, kv_heads, group, dim = q.shape
    folded = q.transpose(1, 2).reshape(batch, kv_heads, rows * group, dim)
    if mask is not None:
        mask = mask[:, None, :, None].expand(-1, -1, -1, group, -1).flatten(2, 3)
    out = F.scaled_dot_product_attention(folded, k, v, attn_mask=mask)
    return out.view(batch, kv_heads, rows, group, dim).transpose(1, 2).reshape(batch * rows, -1)


def attend_chunk(
    q: torch.Tensor,
    own: tuple[torch.Tensor, torch.Tensor],
    past: Iterable[tuple[torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
    """Return causal attention of a prompt chunk `q` [n, K, G, D] as [n, K * G * D].

    `own` are the chunk's keys and values [K, n, D]; `past` yields earlier segments of any length,
    which every row reads whole. Segments are merged by their log-sum-exp in float32, oldest
    first (FlashAttention, Dao et al., 2022, section 3.1), so that a context of any length needs
    the room of one segment.
    """
    rows, kv_heads, group, dim = q.shape
    heads = q.reshape(1, rows, kv_heads * group, dim).transpose(1, 2)
    out, lse = None, None
    for k, v, causal in [*((k, v, False) for k, v in past), (*own, True)]:
        k, v = (t.repeat_interleave(group, 0)[None] for t in (k, v))
        part, part_lse = _attend_with_lse(heads, k, v, causal=causal)
        if out is None or lse is None:
            out, lse = part.float(), part_lse
            continue
        total = torch.logaddexp(lse, part_lse)
        out = (
            out * (lse - total).exp()[..., None]
            + part.float() * (part_lse - total).exp()[..., None]
        )
        lse = total
    assert out is not None
    return out.to(q.dtype)[0].transpose(0, 1).reshape(rows, -1)


def _attend_with_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention [1, heads, n, D] and its log-sum-exp [1, heads, n] in float32."""
    if q.is_cuda and q.dtype != torch.float32:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
        return out, lse
    if q.is_cuda:
        out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, None, True, 0.0, causal
        )
        return out, lse[..., : q.shape[2]]
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    return out, lse.float()


def attend_prompt(
    q: torch.Tensor,
    pages: torch.Tensor,
    *,
    first_position: int,
    first_cell: int,
    cells: range,
    sums: torch.Tensor,
    stats: torch.Tensor,
    last: bool,
    out: torch.Tensor,
) -> None:
    """Do what the package's `attend_prompt` says by one softmax a range, in float32.

    `stats` holds each head's highest score and the sum of its exponentials relative to it.
    """
    rows, heads, dim = q.shape
    kv_heads = pages.shape[1] // 2
    planes = pages.transpose(0, 1).reshape(2, kv_heads, -1, dim).float()
    k, v = planes[:, :, cells.start - first_cell : cells.stop - first_cell].unbind(0)
    grouped = q.float().view(rows, kv_heads, -1, dim)
    scores = torch.einsum("rkgd,knd->rkgn", grouped, k).reshape(rows, heads, -1) / dim**0.5
    position = torch.arange(first_position, first_position + rows, device=q.device)
    cell = torch.arange(cells.start, cells.stop, device=q.device)
    scores.masked_fill_((cell > position[:, None])[:, None], -torch.inf)
    top = scores.amax(-1)
    before, total = (stats[..., 0], stats[..., 1]) if cells.start else (top, torch.zeros_like(top))
    higher = torch.maximum(before, top)
    share = (scores - higher[..., None]).exp()
    shrink = (before - higher).exp()
    total = total * shrink + share.sum(-1)
    read = torch.einsum("rkgn,knd->rkgd", share.view(rows, kv_heads, -1, len(cells)), v)
    acc = read.reshape(rows, heads, dim)
    if cells.start:
        acc = acc + sums * shrink[..., None]
    if last:
        out.copy_(acc / total[..., None])
    else:
        sums.copy_(acc)
        stats.copy_(torch.stack([higher, total], -1))
