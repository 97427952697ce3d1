"""One continuation: its tokens, when each arrived, and what the rounds did."""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from statistics import quantiles
from typing import Literal

from strata.config import NOT_FINITE, SamplingParams
from strata.errors import NotFiniteError
from strata.kv.counters import Counters
from strata.lm.tokenizer import Tokenizer
from strata.stops import StopMatcher

Stopped = Literal["length", "eos", "stop", "interrupted"]


def hash_tokens(tokens: list[int]) -> str:
    """Return the SHA-256 of `tokens` as little-endian int32."""
    return hashlib.sha256(struct.pack(f"<{len(tokens)}i", *tokens)).hexdigest()


@dataclass(slots=True, kw_only=True)
class Generation:
    """What `Session.generate` returns; times are seconds of a monotonic clock.

    Rates need two tokens: the first one is the prompt's, so `decode_s` runs from the first
    token's arrival to the last's. With fewer they are None.
    """

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    stopped: Stopped = "length"
    rounds: int = 0
    first_token_s: float = 0.0
    """From the call to the first token's arrival; the prompt's own time comes before it."""
    times_s: list[float] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    """Rounds whose draft at position j was accepted."""
    drafted: list[int] = field(default_factory=list)
    """Rounds that had a draft at position j."""
    tried: list[int] = field(default_factory=list)
    """Rounds whose draft at position j was verified and all before it accepted."""
    kv: Counters = field(default_factory=Counters)
    experts: Counters = field(default_factory=Counters)

    def note_round(self, drafted: int, accepted: int, kept: int) -> None:
        """Count one round and its drafts by position; `kept` of its accepted + 1 tokens count.

        A draft behind the token that ends the text is none of the text's.
        """
        self.rounds += 1
        if kept <= accepted:
            drafted = accepted = kept
        for counts in (self.drafted, self.accepted, self.tried):
            counts.extend([0] * (drafted - len(counts)))
        for j in range(drafted):
            self.drafted[j] += 1
            self.accepted[j] += j < accepted
            self.tried[j] += j <= accepted

    def whole(self) -> Generation:
        """Return itself; raise KeyboardInterrupt where Ctrl-C ended it: half a run is no figure."""
        if self.stopped == "interrupted":
            raise KeyboardInterrupt
        return self

    @property
    def token_hash(self) -> str:
        """Return `hash_tokens` of the new ids."""
        return hash_tokens(self.tokens)

    @property
    def decode_s(self) -> float:
        """Return the seconds from the first token's arrival to the last's."""
        return self.times_s[-1] - self.times_s[0] if len(self.times_s) > 1 else 0.0

    @property
    def decode_tok_s(self) -> float | None:
        """Return (new - 1) / decode_s."""
        return (len(self.tokens) - 1) / self.decode_s if self.decode_s else None

    @property
    def rounds_per_s(self) -> float | None:
        """Return verify rounds a second of decode."""
        return self.rounds / self.decode_s if self.decode_s else None

    @property
    def tokens_per_round(self) -> float | None:
        """Return the tokens that came out of a round, bonus token included."""
        return (len(self.tokens) - 1) / self.rounds if self.rounds else None

    def tpot_ms(self, percent: int) -> float | None:
        """Return the `percent` percentile of the time per output token, in milliseconds.

        Tokens of one round arrive together; each takes its share of the round.
        """
        gaps: list[float] = []
        last = self.times_s[0] if self.times_s else 0.0
        for arrived, of_round in groupby(self.times_s[1:]):
            together = len(list(of_round))
            gaps += [(arrived - last) / together * 1e3] * together
            last = arrived
        if len(gaps) < 2:
            return gaps[0] if gaps else None
        return quantiles(gaps, n=100, method="inclusive")[percent - 1]


class Collector:
    """Take the tokens of rounds into a Generation until one of them, or their text, ends it."""

    def __init__(
        self,
        params: SamplingParams,
        tokenizer: Tokenizer,
        on_text: Callable[[str], None] | None,
        *,
        first: int = 0,
    ) -> None:
        """Take tokens whose first one stands at position `first`."""
        self.out = Generation()
        self._first = first
        self._max_new = params.max_new
        self._eos_ids = () if params.ignore_eos else tokenizer.eos_ids
        self._stream = tokenizer.stream()
        self._matcher = StopMatcher(params.stop)
        self._ends_by_text = bool(params.stop)
        self._waiting: list[int] = []
        self._on_text = on_text

    @property
    def room(self) -> int:
        """Return how many tokens may still come."""
        return self._max_new - len(self.out.tokens)

    def take(self, tokens: list[int]) -> bool:
        """Take what one round gave, all of it arriving now; return whether more may come.

        The text of these tokens waits for `catch_up`, unless it may end the generation.
        Raises NotFiniteError at a token that could not be drawn.
        """
        now = time.perf_counter()
        for token in tokens[: self.room]:
            if token == NOT_FINITE:
                raise NotFiniteError(self._first + len(self.out.tokens))
            self.out.tokens.append(token)
            self.out.times_s.append(now)
            if token in self._eos_ids:
                self.out.stopped = "eos"
                return False
            self._waiting.append(token)
            if self._ends_by_text and not self.catch_up():
                return False
        return self.room > 0

    def catch_up(self) -> bool:
        """Show the text of the tokens that wait; return whether none of it ends the generation."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._show(self._matcher.push(self._stream.push(waiting)))
        if self._matcher.hit:
            self.out.stopped = "stop"
        return not self._matcher.hit

    def finish(self) -> None:
        """Show the text that was held back, now that nothing follows."""
        if self.catch_up():
            self._show(self._matcher.push(self._stream.finish()) + self._matcher.finish())
            if self._matcher.hit and self.out.stopped != "interrupted":
                self.out.stopped = "stop"

    def _show(self, text: str) -> None:
        self.out.text += text
        if self._on_text and text:
            self._on_text(text)
