"""Slots of newborn pages in plain torch; the host reads where the window stands."""

from __future__ import annotations

import torch

from strata.kernels.resolve import ref
from strata.kernels.resolve.state import FILLED, Admitted, ResolveState


def bear_pages(
    state: ResolveState,
    base: torch.Tensor,
    *,
    rows: int,
    page_cells: int,
    tail: int,
    replace: bool,
) -> None:
    """Bear page by page, layer by layer; see the package for the contract."""
    start = int(base)
    out = Admitted.empty(1, 1, state.table.device)
    for page in range(start // page_cells, (start + rows - 1) // page_cells + 1):
        for layer in range(len(state.table)):
            if state.table[layer, page] >= 0:
                continue
            first_tail = page - tail + 1
            if replace or state.scalars[layer, FILLED] < state.owner.shape[1]:
                newborn = torch.tensor([page], device=state.table.device)
                keep = torch.tensor([first_tail])
                ref.resolve(state, newborn, out, layer=layer, keep_from=keep, count=False)
            else:
                _push_out(state.table[layer], state.owner[layer], page, first_tail)


def _push_out(table: torch.Tensor, owner: torch.Tensor, page: int, first_tail: int) -> None:
    """Give `page` the slot of the newest page that is older than `first_tail`."""
    leaving = int(torch.where(owner < first_tail, owner, -1).max())
    if leaving >= 0:
        slot = int(table[leaving])
        table[leaving], table[page], owner[slot] = -1, slot, page
