"""The drafter of a session that does not draft."""

from __future__ import annotations

import torch

from strata.draft.base import Pick


class NullDrafter:
    """Propose nothing and remember nothing."""

    def observe(self, tokens: torch.Tensor, hidden: torch.Tensor) -> None:
        """Ignore verified tokens."""

    def propose(self, count: int, pick: Pick, min_p: float) -> list[int]:
        """Return no drafts."""
        return []

    def park(self) -> torch.Tensor | None:
        """Return nothing."""
        return None

    def restore(self, cells: torch.Tensor | None) -> None:
        """Need no cells."""

    def truncate(self, cells: int) -> None:
        """Have nothing to forget."""
