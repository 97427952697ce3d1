"""Top-k routing and gated expert products in plain torch.

Shapes: R rows, H hidden, E experts, k experts a token, I expert width. An expert's blob is
gate and up [2I, H] followed by down [H, I].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def route(
    x: torch.Tensor, router: torch.Tensor, *, count: int, normalise: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids [R, k] and weights [R, k] of each row's experts, best first; softmax in float32."""
    probs = F.linear(x, router).softmax(-1, dtype=torch.float32)
    weights, ids = probs.topk(count, -1)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return ids, weights.to(x.dtype)


def expert_product(x: torch.Tensor, blobs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum [R, H] of k experts a row, `blobs` [R * k, 3IH], in router order."""
    rows, hidden = x.shape
    count = weights.shape[1]
    width = blobs.shape[1] // (3 * hidden)
    gate_up = blobs[:, : 2 * width * hidden].view(-1, 2 * width, hidden)
    down = blobs[:, 2 * width * hidden :].view(-1, hidden, width)
    inputs = x[:, None, :, None].expand(-1, count, -1, -1).reshape(-1, hidden, 1)
    gate, up = torch.bmm(gate_up, inputs).chunk(2, 1)
    out = torch.bmm(down, F.silu(gate) * up).view(rows, count, hidden)
    return torch.bmm(weights[:, None], out)[:, 0]


def grouped_product(
    x: torch.Tensor, experts: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Return what `expert_product` does for a long chunk, each expert's rows in one product.

    `experts` [E, 3IH] are one layer's blobs, wherever they live; each is brought to x's device once.
    Contributions are added per row in router order.
    """
    rows, hidden = x.shape
    count = weights.shape[1]
    width = experts.shape[1] // (3 * hidden)
    order = ids.flatten().argsort(stable=True)
    sizes = torch.bincount(ids.flatten(), minlength=experts.shape[0]).tolist()
    out = torch.empty(rows * count, hidden, dtype=x.dtype, device=x.device)
    start = 0
    for blob, size in zip(experts, sizes, strict=True):
        if size == 0:
            continue
        pairs = order[start : start + size]
        start += size
        blob = blob.to(x.device, non_blocking=True)
        gate_up = blob[: 2 * width * hidden].view(2 * width, hidden)
        gate, up = F.linear(x[pairs // count], gate_up).chunk(2, -1)
        down = blob[2 * width * hidden :].view(hidden, width)
        out[pairs] = F.linear(F.silu(gate) * up, down)
    return torch.bmm(weights[:, None], out.view(rows, count, hidden))[:, 0]
