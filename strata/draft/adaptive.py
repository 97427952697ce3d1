"""How many tokens to draft next: a constant, or what acceptance has paid for so far.

`--spec auto` never looks at a clock, so that the same prompt and seed give the same rounds on
every machine.
"""

from __future__ import annotations

from copy import copy
from typing import Protocol

from strata.config import MAX_DRAFTS

DRAFT_PRICE = {"cpu": 0.5, "cuda": 0.3}
"""What one more draft costs, in plain decode steps: its draft step and its verify row.

On a CPU measured by experiments/cpu-decode (rounds/s by drafts); on a GPU an estimate.
"""
SMALLEST_GAIN = 1.02
"""Expected speed over plain decoding below which nothing is drafted."""
MEMORY = 0.9
"""Weight of the past in the acceptance estimate; a tenth is the last round."""
PROBE_ROUNDS = (16, 256)
"""Idle rounds before a draft is tried again: at first, and at most after failed tries."""


class DraftCount(Protocol):
    """Decide the drafts of the next round from the last rounds' acceptance."""

    def next(self) -> int:
        """Return the drafts of the next round."""

    def learn(self, drafted: int, accepted: int) -> None:
        """Take what the round drafted and how many of them were accepted."""

    def foresee(self, drafts: int) -> int | None:
        """Return what `next` returns behind a round of `drafts` drafts, None where that is open."""


class FixedDrafts:
    """The same number every round."""

    def __init__(self, count: int) -> None:
        self._count = count

    def next(self) -> int:
        """Return the constant."""
        return self._count

    def learn(self, drafted: int, accepted: int) -> None:
        """Ignore acceptance."""

    def foresee(self, drafts: int) -> int | None:
        """Return the constant."""
        return self._count


class AutoDrafts:
    """The number of drafts with the most expected tokens for their price.

    Each position keeps the share of rounds in which its draft was accepted given that the one
    before it was; draft j is worth the product of the first j shares, in tokens. Where no number
    of drafts is worth its price a round drafts nothing. What is not drafted is not learned, so
    after some idle rounds one draft is tried; each try that fails doubles the wait.
    """

    def __init__(self, device_type: str) -> None:
        self._price = DRAFT_PRICE[device_type]
        self._share = [0.75] * MAX_DRAFTS
        self._idle = 0
        self._patience = PROBE_ROUNDS[0]

    def next(self) -> int:
        """Return the drafts of the next round."""
        best, count = SMALLEST_GAIN, 0
        worth = tokens = 1.0
        for j, share in enumerate(self._share, start=1):
            worth *= share
            tokens += worth
            gain = tokens / (1 + self._price * j)
            if gain > best:
                best, count = gain, j
        if count:
            self._idle, self._patience = 0, PROBE_ROUNDS[0]
            return count
        self._idle += 1
        if self._idle <= self._patience:
            return 0
        self._idle = 0
        self._patience = min(2 * self._patience, PROBE_ROUNDS[1])
        return 1

    def learn(self, drafted: int, accepted: int) -> None:
        """Move the shares of the positions that were tried after an accepted one."""
        for j in range(min(drafted, accepted + 1)):
            self._share[j] = MEMORY * self._share[j] + (1 - MEMORY) * (j < accepted)

    def foresee(self, drafts: int) -> int | None:
        """Return what every outcome leads to, if it is one number."""
        counts: set[int] = set()
        for accepted in range(drafts + 1):
            for drafted in {accepted, drafts}:  # a drafter in doubt stops early
                twin = copy(self)
                twin._share = list(self._share)
                twin.learn(drafted, accepted)
                counts.add(twin.next())
                if len(counts) > 1:
                    return None
        return counts.pop()
