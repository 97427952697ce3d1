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
