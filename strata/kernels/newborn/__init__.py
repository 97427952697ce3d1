"""Give the pages that a window is about to begin their slots, in every layer at once.

One rule for both ways of reading, that of `strata.kv.residency.Residency.admit_new`. A page of the
window without a slot is newborn: pages of the tail are never victims, so an earlier page of the
window, one born for drafts that were rejected included, still has its own.
"""

from __future__ import annotations

import torch

from strata.kernels import device
from strata.kernels.newborn import ref
from strata.kernels.resolve import MAX_LRFU_SLOTS, ResolveState

__all__ = ["bear_pages"]


def bear_pages(
    state: ResolveState,
    base: torch.Tensor,
    *,
    rows: int,
    page_cells: int,
    tail: int,
    replace: bool,
) -> None:
    """Give each newborn page of cells `base`[0] .. `base`[0] + `rows` - 1 a slot in every layer.

    A free slot first. Where there is none, `replace` asks the victim policy; otherwise (dense
    reading, where nothing is replaced) the newest page that left the tail gives way, so that the
    prompt's newest pages stay. The last `tail` pages up to the newborn one keep their slots; a
    layer whose slots they all are leaves it without. Nothing is counted: no byte crosses the bus.
    `base` is read on the device, and a window that begins no page changes nothing. On a GPU LRFU
    over more than 16,384 slots takes the reference, which waits for the host.
    """
    fits = not replace or state.victims == "clock" or state.owner.shape[1] <= MAX_LRFU_SLOTS
    if device.has_kernels(state.table) and fits:
        from strata.kernels.newborn import triton

        triton.bear_pages(state, base, rows=rows, page_cells=page_cells, tail=tail, replace=replace)
        return
    ref.bear_pages(state, base, rows=rows, page_cells=page_cells, tail=tail, replace=replace)
