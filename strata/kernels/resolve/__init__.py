"""Make selected pages resident: who has a slot, who gets one, and whose it was.

One resolve of a layer: pages that have a slot are hits; the others take free slots first, then
those of victims, in ascending order of page, until slots run out; what is left over is read in
place. No page asked for is a victim, nor one numbered `keep_from` or more. Decisions are those of
`strata.kv.residency.Residency`; nothing here moves K/V.
"""

from __future__ import annotations

import torch

from strata.kernels import device
from strata.kernels.resolve import ref
from strata.kernels.resolve.state import Admitted, ResolveState

__all__ = ["MAX_LRFU_SLOTS", "Admitted", "ResolveState", "resolve"]

MAX_LRFU_SLOTS = 16_384
"""Slots whose weights one program holds in registers."""


def resolve(
    state: ResolveState,
    pages: torch.Tensor,
    out: Admitted,
    *,
    layer: int,
    keep_from: torch.Tensor | None = None,
    base: int = 0,
    distinct: bool = False,
    joined: bool = False,
) -> None:
    """Resolve `pages` [...] of `layer`, plus `base` each.

    Changes `state` and writes `out`. `pages` may repeat and need no order, unless the caller says
    that they are `distinct` and ascending, which saves the search for repeats. `keep_from` [1] is
    read on the device. On a GPU nothing is read back by the host, except for LRFU over more than
    16,384 slots, which takes the reference. `joined` says that lines of a graph meet in front of
    this launch (`strata.kernels.overlap`).
    """
    fits = state.victims == "clock" or state.owner.shape[1] <= MAX_LRFU_SLOTS
    if device.has_kernels(state.table) and fits:
        from strata.kernels.resolve import triton

        triton.resolve(
            state,
            pages,
            out,
            layer=layer,
            keep_from=keep_from,
            base=base,
            distinct=distinct,
            joined=joined,
        )
        return
    ref.resolve(state, pages, out, layer=layer, keep_from=keep_from, base=base)
