"""Acceptance in plain torch; see the package for the contract."""

from __future__ import annotations

import torch

from strata.config import MAX_ROWS, NOT_FINITE
from strata.kernels.accept.board import ROUNDS_KEPT, Board


def accept(board: Board, *, rows: int, page_cells: int, shares: torch.Tensor) -> None:
    """Count what held and move on."""
    drafts = torch.arange(rows - 1, device=board.positions.device)
    held = (board.targets[: rows - 1] == board.tokens[1:rows]) & (drafts < board.limit)
    accepted = held.long().cumprod(0).sum()
    result = board.result[int(board.rounds) % ROUNDS_KEPT]
    result[:rows] = board.targets[:rows].masked_fill(shares.isnan(), NOT_FINITE)
    result[MAX_ROWS] = accepted
    result[MAX_ROWS + 1] = board.limit
    result[MAX_ROWS + 2 :] = torch.cat([board.page_counts, board.expert_counts])
    board.rounds.add_(1)
    board.accepted.fill_(accepted)
    board.written.copy_(board.positions)
    board.written_ahead.copy_(board.ahead)
    board.positions.add_(accepted + 1)
    board.ahead.add_(accepted + 1)
    board.own_pages.copy_(board.positions // page_cells)
    board.tokens[:1] = board.targets.index_select(0, accepted.view(1))


def remember(board: Board, seen: torch.Tensor) -> None:
    """Note where the accepted tokens stand."""
    kept = board.targets[: int(board.accepted) + 1]
    at = board.written_ahead[: len(kept)].to(seen.dtype)
    seen.scatter_reduce_(0, kept, at, "amax")
