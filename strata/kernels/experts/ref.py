"""Top-k routing and gated expert products in plain torch.

Shapes: R rows, H hidden, E experts, k experts a token, I expert width. An expert is [3I, H]: the
rows of gate and up, then down transposed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def route(
    logits: torch.Tensor, *, count: int, normalise: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids [R, k] and weights [R, k] of each row's experts from router `logits` [R, E].

    Best first; softmax over all experts in float32, then renormalised over the k if asked.
    """
    weights, ids = logits.softmax(-1, dtype=torch.float32).topk(count, -1)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return ids, weights.to(logits.dtype)


def expert_product(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Return the weighted sum [R, H] over each row's k experts.

    `gate_up` [R * k, 2I, H] and `down` [R * k, I, H] are the experts of `x` [R, H] in router order,
    `weights` [R, k] theirs. A row's experts are one product each way: the k gates and ups side by
    side, then the k downs stacked with the router's weight folded into their inputs.
    """
    rows, hidden = x.shape
    count = weights.shape[1]
    product = torch.bmm(x[:, None], gate_up.view(rows, -1, hidden).transpose(1, 2))
    gate, up = product.view(rows, count, 2, -1).unbind(2)
    inner = F.silu(gate) * up * weights[..., None]
    return torch.bmm(inner.view(rows, 1, -1), down.view(rows, -1, hidden))[:, 0]


def slot_product(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    pool: torch.Tensor,
    *,
    table: torch.Tensor | None,
    host: torch.Tensor | None,
    base: int,
) -> torch.Tensor:
    """Return what `expert_product` does for experts in slots or in place; see the package."""
    experts = ids + base
    padding = ids < 0
    slots = experts if table is None else table[experts.clamp_min(0)].long()
    blobs = pool[slots.masked_fill(padding, 0).clamp_min(0)]  # [R, k, 3I, H]
    in_place = (slots < 0) & ~padding
    if host is not None and in_place.any():
        blobs[in_place] = host[experts[in_place].to(host.device)].to(blobs.device)
    blobs[padding] = 0
    rows = blobs.shape[2] // 3 * 2
    gate_up, down = (part.flatten(0, 1).contiguous() for part in blobs.tensor_split([rows], 2))
    return expert_product(x, gate_up, down, weights)


def grouped_product(
    x: torch.Tensor, experts: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Return what `expert_product` does for a long chunk, each expert's rows in one product.

    `experts` [E, 3I, H] are one layer's, wherever they live; each is brought to x's device once.
    Contributions are added per row in router order.
    """
    rows, hidden = x.shape
    count = weights.shape[1]
    width = experts.shape[1] // 3
    order = ids.flatten().argsort(stable=True)
    sizes = torch.bincount(ids.flatten(), minlength=len(experts)).tolist()
    out = torch.empty(rows * count, hidden, dtype=x.dtype, device=x.device)
    start = 0
    for expert, size in zip(experts, sizes, strict=True):
        if size == 0:
            continue
        pairs = order[start : start + size]
        start += size
        expert = expert.to(x.device, non_blocking=True)
        gate, up = F.linear(x[pairs // count], expert[: 2 * width]).chunk(2, -1)
        out[pairs] = (F.silu(gate) * up) @ expert[2 * width :]
    return torch.bmm(weights[:, None], out.view(rows, count, hidden))[:, 0]
