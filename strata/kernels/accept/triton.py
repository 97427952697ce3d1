"""Acceptance as one program of one warp, and what is seen behind it as another."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from strata.config import MAX_ROWS, NOT_FINITE
from strata.kernels.accept.board import ROUNDS_KEPT, Board
from strata.kernels.device import on_device_of
from strata.kernels.overlap import let_next_begin, overlapped, wait_for_previous


@triton.jit(do_not_specialize=["rows"])
def _accept(
    positions_ptr,
    ahead_ptr,
    own_pages_ptr,
    written_ptr,
    written_ahead_ptr,
    tokens_ptr,
    targets_ptr,
    shares_ptr,
    accepted_ptr,
    limit_ptr,
    rounds_ptr,
    page_counts_ptr,
    expert_counts_ptr,
    result_ptr,
    rows,
    page_counts,
    expert_counts,
    PAGE_CELLS: tl.constexpr,
    ROWS: tl.constexpr,
    KEPT: tl.constexpr,
    BAD: tl.constexpr,
    COUNTS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    i = tl.arange(0, ROWS)
    drafted = i < rows - 1
    target = tl.load(targets_ptr + i, mask=i < rows, other=0)
    share = tl.load(shares_ptr + i, mask=i < rows, other=0.0)
    draft = tl.load(tokens_ptr + i + 1, mask=drafted, other=0)
    limit = tl.load(limit_ptr)
    position = tl.load(positions_ptr + i)
    round_number = tl.load(rounds_ptr)
    j = tl.arange(0, COUNTS)
    of_experts = (j >= page_counts) & (j < page_counts + expert_counts)
    count = tl.load(page_counts_ptr + j, mask=j < page_counts, other=0)
    count += tl.load(expert_counts_ptr + (j - page_counts), mask=of_experts, other=0)
    failed = drafted & ((target != draft) | (i >= limit))
    accepted = tl.min(tl.where(failed, i, rows - 1), 0).to(tl.int64)
    result_ptr += round_number % KEPT * (ROWS + 2 + page_counts + expert_counts)
    tl.store(result_ptr + i, tl.where(share == share, target, BAD), mask=i < rows)
    tl.store(result_ptr + ROWS, accepted)
    tl.store(result_ptr + ROWS + 1, limit)
    tl.store(result_ptr + ROWS + 2 + j, count, mask=j < page_counts + expert_counts)
    tl.store(rounds_ptr, round_number + 1)
    tl.store(accepted_ptr, accepted)
    tl.store(written_ptr + i, position)
    tl.store(written_ahead_ptr + i, position + 1)
    position += accepted + 1
    tl.store(positions_ptr + i, position)
    tl.store(ahead_ptr + i, position + 1)
    tl.store(own_pages_ptr + i, position // PAGE_CELLS)
    tl.store(tokens_ptr, tl.sum(tl.where(i == accepted, target, 0), 0))


@triton.jit
def _remember(
    targets_ptr,
    written_ahead_ptr,
    accepted_ptr,
    seen_ptr,
    ROWS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    i = tl.arange(0, ROWS)
    kept = i <= tl.load(accepted_ptr)
    target = tl.load(targets_ptr + i, mask=kept, other=0)
    at = tl.load(written_ahead_ptr + i, mask=kept, other=0).to(tl.int32)
    tl.atomic_max(seen_ptr + target, at, mask=kept)  # the later of two equal ones


def accept(board: Board, *, rows: int, page_cells: int, shares: torch.Tensor) -> None:
    """Launch the program."""
    pages, experts = len(board.page_counts), len(board.expert_counts)
    with on_device_of(board.positions):
        _accept[(1,)](
            board.positions,
            board.ahead,
            board.own_pages,
            board.written,
            board.written_ahead,
            board.tokens,
            board.targets,
            shares,
            board.accepted,
            board.limit,
            board.rounds,
            board.page_counts,
            board.expert_counts,
            board.result,
            rows,
            pages,
            experts,
            PAGE_CELLS=page_cells,
            ROWS=MAX_ROWS,
            KEPT=ROUNDS_KEPT,
            BAD=NOT_FINITE,
            COUNTS=triton.next_power_of_2(max(1, pages + experts)),
            num_warps=1,
            **overlapped(board.positions),
        )


def remember(board: Board, seen: torch.Tensor) -> None:
    """Launch the program that notes where the accepted tokens stand."""
    with on_device_of(seen):
        _remember[(1,)](
            board.targets,
            board.written_ahead,
            board.accepted,
            seen,
            ROWS=MAX_ROWS,
            num_warps=1,
            **overlapped(seen),
        )
