"""How many tokens to draft next: a constant, or what acceptance has paid for so far.

`--spec auto` never looks at a clock, so that the same prompt and seed give the same rounds on
every machine.
"""

from __future__ import annotations

from typing import Protocol

from strata.config import MAX_DRAFTS

ROW_PRICE = 0.35
"""What one more draft costs, in plain decode steps: its draft step and its verify row."""
MEMORY = 0.9
"""Weight of the past in the acceptance estimate; a tenth is the last round."""
PROBE_ROUNDS = 24
"""Rounds without drafts before one draft is tried again."""


class DraftCount(Protocol):
    """Decide the drafts of the next round from the last rounds' acceptance."""

    def next(self) -> int:
        """Return the drafts of the next round."""

    def learn(self, drafted: int, accepted: int) -> None:
        """Take what the round drafted and how many of them were accepted."""


class FixedDrafts:
    """The same number every round."""

    def __init__(self, count: int) -> None:
        self._count = count

    def next(self) -> int:
        """Return the constant."""
        return self._count

    def learn(self, drafted: int, accepted: int) -> None:
        """Ignore acceptance."""


class AutoDrafts:
    """Draft as far as the chance that a draft is accepted pays for its row.

    Each position keeps the share of rounds in which its draft was accepted given that the one
    before it was. Draft j is worth the product of the first j shares, in tokens; it is drafted
    while that exceeds ROW_PRICE. With no draft worth its price a round drafts nothing, and every
    PROBE_ROUNDS rounds one draft is tried, because what is not drafted is not learned.
    """

    def __init__(self) -> None:
        self._share = [0.75] * MAX_DRAFTS
        self._idle = 0

    def next(self) -> int:
        """Return the drafts whose expected tokens exceed their price."""
        worth, count = 1.0, 0
        for share in self._share:
            worth *= share
            if worth < ROW_PRICE:
                break
            count += 1
        if count:
            self._idle = 0
            return count
        self._idle += 1
        if self._idle % PROBE_ROUNDS:
            return 0
        return 1

    def learn(self, drafted: int, accepted: int) -> None:
        """Move the shares of the positions that were tried after an accepted one."""
        for j in range(min(drafted, accepted + 1)):
            self._share[j] = MEMORY * self._share[j] + (1 - MEMORY) * (j < accepted)
