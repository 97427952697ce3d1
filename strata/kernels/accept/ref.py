"""Acceptance in plain torch; see the package for the contract."""

from __future__ import annotations

import torch

from strata.config import MAX_ROWS
from strata.kernels.accept.board import Board


def accept(board: Board, *, rows: int, page_cells: int) -> None:
    """Count what held and move on."""
    drafts = torch.arange(rows - 1, device=board.positions.device)
    held = (board.targets[: rows - 1] == board.tokens[1:rows]) & (drafts < board.limit)
    accepted = held.long().cumprod(0).sum()
    board.result[:rows] = board.targets[:rows]
    board.result[MAX_ROWS] = accepted
    board.result[MAX_ROWS + 1 :] = board.limit
    board.accepted.fill_(accepted)
    board.written.copy_(board.positions)
    board.written_ahead.copy_(board.ahead)
    board.positions.add_(accepted + 1)
    board.ahead.add_(accepted + 1)
    board.own_pages.copy_(board.positions // page_cells)
    board.tokens[:1] = board.targets.index_select(0, accepted.view(1))
