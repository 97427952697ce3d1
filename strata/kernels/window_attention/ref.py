"""Window attention in plain torch; see the package for the contract."""

from __future__ import annotations

import torch

from strata.kernels.attention import attend
from strata.kernels.paged_attention import Splits


def attend_window(
    q: torch.Tensor,
    ring: torch.Tensor,
    position: torch.Tensor,
    window: int,
    *,
    row: torch.Tensor | None,
) -> Splits:
    """Gather the window, attend, and return it as one split."""
    last = int(position)
    cells = torch.arange(max(1, last - window + 1), last + 1, device=ring.device) % len(ring)
    kv = ring.index_select(0, cells).permute(1, 2, 0, 3)
    query = q[:1] if row is None else q.index_select(0, row)
    return Splits.of(attend(query[None], kv[None, 0], kv[None, 1], None), q.shape[-1])
