"""Where a sequence stands, in device memory: what every launch of a round reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strata.config import MAX_DRAFTS, MAX_ROWS

BOARD_SHAPE = (8, MAX_ROWS)
ROUNDS_KEPT = 4
"""Rows of `result`, taken in turn: the last one read, one under way, one ahead, and a spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Int64 entries for W = 8 rows; a window of fewer rows uses the first ones.

    Entry i of `positions` is the committed end plus i, `ahead` is one more, `own_pages` the page
    of each. After a window `written` and `written_ahead` say the same of the window's rows. Round
    n behind `start` writes row n % ROUNDS_KEPT of `result`, so that a later one may begin before
    the host has read it; N and M are entries of counters that resolves keep, which go along.
    """

    positions: torch.Tensor  # [W]
    ahead: torch.Tensor  # [W]
    own_pages: torch.Tensor  # [W]
    written: torch.Tensor  # [W]
    written_ahead: torch.Tensor  # [W]
    tokens: torch.Tensor  # [W], the last verified token and the drafts behind it
    targets: torch.Tensor  # [W], what the model draws behind each row
    accepted: torch.Tensor  # [1], drafts that held in the last window
    limit: torch.Tensor  # [1], drafts that count at most
    rounds: torch.Tensor  # [1], rounds behind `start`
    page_counts: torch.Tensor  # [N]
    expert_counts: torch.Tensor  # [M]
    result: torch.Tensor  # [ROUNDS_KEPT, W + 2 + N + M], host: targets, accepted, limit, counts

    def start(self, cells: int, token: int, page_cells: int) -> None:
        """Stand behind `cells` committed cells, with `token` verified but not written."""
        at = torch.arange(cells, cells + MAX_ROWS, device=self.positions.device)
        self.positions.copy_(at)
        self.ahead.copy_(at + 1)
        self.own_pages.copy_(at // page_cells)
        self.tokens[0] = token
        self.limit.fill_(MAX_DRAFTS)
        self.rounds.zero_()
        self.result[-1, MAX_ROWS + 2 :].copy_(torch.cat([self.page_counts, self.expert_counts]))

    def restore_counts(self, rounds: int) -> None:
        """Count again what stood behind the first `rounds` rounds; at most two have followed."""
        kept = self.result[(rounds - 1) % ROUNDS_KEPT, MAX_ROWS + 2 :]
        pages = len(self.page_counts)
        self.page_counts.copy_(kept[:pages])
        self.expert_counts.copy_(kept[pages:])

    def state(self) -> list[torch.Tensor]:
        """Return what a run of a phase changes and a warm-up must put back."""
        return [
            self.positions,
            self.ahead,
            self.own_pages,
            self.written,
            self.written_ahead,
            self.tokens,
            self.accepted,
            self.limit,
            self.rounds,
        ]

    @classmethod
    def empty(cls, device: torch.device) -> Board:
        """Return a board that stands nowhere; `start` comes before a round."""
        return cls.over(torch.zeros(BOARD_SHAPE, dtype=torch.long, device=device))

    @classmethod
    def over(
        cls,
        memory: torch.Tensor,
        page_counts: torch.Tensor | None = None,
        expert_counts: torch.Tensor | None = None,
    ) -> Board:
        """Return a board in `memory` of BOARD_SHAPE, int64 zeros, beside int64 counters."""
        pinned = memory.device.type == "cuda"
        pages, experts = (
            memory[7, :0] if counts is None else counts.view(-1)
            for counts in (page_counts, expert_counts)
        )
        width = MAX_ROWS + 2 + len(pages) + len(experts)
        result = torch.zeros(ROUNDS_KEPT, width, dtype=torch.long, pin_memory=pinned)
        return cls(
            positions=memory[0],
            ahead=memory[1],
            own_pages=memory[2],
            written=memory[3],
            written_ahead=memory[4],
            tokens=memory[5],
            targets=memory[6],
            accepted=memory[7, :1],
            limit=memory[7, 1:2],
            rounds=memory[7, 2:3],
            page_counts=pages,
            expert_counts=experts,
            result=result,
        )
