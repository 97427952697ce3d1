"""The end of a round on the device: which drafts held, and where the next round stands.

Contract here, plain torch in `ref`, one launch on a GPU.
"""

from __future__ import annotations

import torch

from strata.kernels import device
from strata.kernels.accept import ref
from strata.kernels.accept.board import ROUNDS_KEPT, Board

__all__ = ["ROUNDS_KEPT", "Board", "accept", "remember"]


def accept(board: Board, *, rows: int, page_cells: int, shares: torch.Tensor) -> None:
    """Count the drafts that equal the targets of a window of `rows` rows, and move on behind them.

    Row r > 0 was drafted: it holds where `tokens`[r] is `targets`[r - 1], r - 1 < `limit`, and
    every draft before it held. The first row's successor is always kept. What the window wrote
    moves to `written`; positions, own pages and the next window's first token follow it; the
    round's row of `result` is written for the host, NOT_FINITE there for a target whose entry of
    `shares` [R], the softmax at it, is NaN.
    """
    if device.has_kernels(board.positions):
        from strata.kernels.accept import triton

        triton.accept(board, rows=rows, page_cells=page_cells, shares=shares)
    else:
        ref.accept(board, rows=rows, page_cells=page_cells, shares=shares)


def remember(board: Board, seen: torch.Tensor) -> None:
    """Note in `seen` [V] int32 where the tokens stand that the last window gave, behind `accept`.

    An entry is the last position of a token; those of rejected drafts never get there.
    """
    if device.has_kernels(seen):
        from strata.kernels.accept import triton

        triton.remember(board, seen)
    else:
        ref.remember(board, seen)
