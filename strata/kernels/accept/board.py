"""Where a sequence stands, in device memory: what every launch of a round reads."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strata.config import MAX_DRAFTS, MAX_ROWS

BOARD_SHAPE = (8, MAX_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Int64 entries for W = 8 rows; a window of fewer rows uses the first ones.

    Entry i of `positions` is the committed end plus i, `ahead` is one more, `own_pages` the page
    of each. After a window `written` and `written_ahead` say the same of the window's rows.
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
    result: torch.Tensor  # [W + 2] in host memory: targets, accepted, limit

    def start(self, cells: int, token: int, page_cells: int) -> None:
        """Stand behind `cells` committed cells, with `token` verified but not written."""
        at = torch.arange(cells, cells + MAX_ROWS, device=self.positions.device)
        self.positions.copy_(at)
        self.ahead.copy_(at + 1)
        self.own_pages.copy_(at // page_cells)
        self.tokens[0] = token
        self.limit.fill_(MAX_DRAFTS)

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
        ]

    @classmethod
    def empty(cls, device: torch.device) -> Board:
        """Return a board that stands nowhere; `start` comes before a round."""
        return cls.over(torch.zeros(BOARD_SHAPE, dtype=torch.long, device=device))

    @classmethod
    def over(cls, memory: torch.Tensor) -> Board:
        """Return a board in `memory` of BOARD_SHAPE, int64 zeros."""
        pinned = memory.device.type == "cuda"
        result = torch.zeros(MAX_ROWS + 2, dtype=torch.long, pin_memory=pinned)
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
            result=result,
        )
