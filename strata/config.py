"""What a session is asked for: plain values with their defaults, resolved once.

Every default lives here and nowhere else; the CLI, the tuner and the tests read it from here.
"Auto" is a value of its own (`None` or ``"auto"``) and is resolved into a new object by
`strata.session`, never written back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal

from strata.errors import UsageError

PAGE_CELLS = 16
MAX_PAGE_CELLS = 1_024
DEFAULT_RING_CELLS = {"cuda": 32_768, "cpu": 1_024}
DEFAULT_MAX_NEW = 256
DEFAULT_DRAFTS = 1
MAX_DRAFTS = 7
MAX_ROWS = MAX_DRAFTS + 1
"""Rows of a verify window at most: the last token and the drafts."""
NOT_FINITE = -1
"""What a round gives in the place of a token whose logits are NaN, or infinite upwards."""

WINDOW_SLACK_CELLS = 9
"""The drafter's ring holds its window plus one round of drafts, the bonus token and one spare."""

Victims = Literal["clock", "lrfu"]
DEFAULT_VICTIMS: Victims = "clock"
Prefetch = Literal["none", "pages", "experts", "all"]
"""What captured and launched rounds fetch before it is asked for."""
DEFAULT_PREFETCH: Prefetch = "experts"
"""What was measured best (`experiments/prefetch`)."""
Rounds = Literal["captured", "launched", "reference"]
"""Phases in CUDA graphs, the same phases launch by launch, or plain PyTorch products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """How many cells a query row reads: a constant, a fraction of the depth, or all (dense)."""

    cells: int = 0
    depth_divisor: int = 0

    @property
    def is_dense(self) -> bool:
        """Return whether a row reads every cell."""
        return self.cells == 0 and self.depth_divisor == 0

    def pages(self, *, need_cells: int, page_cells: int) -> int:
        """Return the pages one row reads in a session of `need_cells`, 0 for dense.

        The number is fixed when the session is created, so that it never moves with the depth
        reached or with the number of rows.
        """
        if self.is_dense:
            return 0
        cells = self.cells or -(-need_cells // self.depth_divisor)
        floor = 1 + tail_pages(page_cells)
        return max(-(-cells // page_cells), floor)

    def __str__(self) -> str:
        return f"depth/{self.depth_divisor}" if self.depth_divisor else str(self.cells)

    @classmethod
    def parse(cls, text: str) -> Selection:
        """Read ``0``, ``2048``, ``2K`` or ``depth/8``; raise UsageError otherwise."""
        from strata.units import parse_cells

        head, slash, tail = text.strip().partition("/")
        if slash:
            if head == "depth" and re.fullmatch(r"[1-9][0-9]{0,8}", tail):
                return cls(depth_divisor=int(tail))
            raise UsageError(f"--kv-select: {text!r} is neither a number of cells nor depth/N")
        cells = parse_cells(text, name="--kv-select")
        if cells < 0:
            raise UsageError(f"--kv-select: {text!r} is negative; 0 reads everything")
        return cls(cells=cells)


def tail_pages(page_cells: int) -> int:
    """Return T = 1 + ceil(9 / page_cells), the pages up to a row's own that it always reads.

    Nine cells is the widest verify window with its bonus token, so every page older than the
    tail is wholly committed whatever the window holds.
    """
    return 1 + -(-WINDOW_SLACK_CELLS // page_cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How many cells the drafter reads: so many, 0 for all, and perhaps no more than the ring."""

    cells: int = 0
    within_ring: bool = False

    def reach(self, *, pool_cells: int, max_context: int) -> int:
        """Return W in a session that reserves `pool_cells` and may reach `max_context`."""
        limits = [max_context]
        if self.cells:
            limits.append(self.cells)
        if self.within_ring:
            limits.append(pool_cells)
        return min(limits)

    @property
    def word(self) -> int | str:
        """Return the rule as a policy table writes it; ``auto`` there is the ring, and stays so."""
        if not self.within_ring:
            return self.cells
        return f"min(ring, {self.cells})" if self.cells else "auto"

    @classmethod
    def of_word(cls, word: int | str) -> Window:
        """Return the rule that `word` writes; raise ValueError for what is none."""
        if isinstance(word, int):
            return cls(cells=word)
        if word == "auto":
            return cls(within_ring=True)
        if found := re.fullmatch(WINDOW_PATTERN, word, re.ASCII):
            return cls(cells=int(found[1]), within_ring=True)
        raise ValueError(f"{word!r} names no window")


WINDOW_PATTERN = r"min\(ring, ([1-9][0-9]{0,8})\)"
AUTO_WINDOW = Window(cells=2_048, within_ring=True)
"""What a session reads that was told no window: what was measured best at every depth
(`experiments/drafter-window`), and no more than the ring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvConfig:
    """The knobs of the K/V ring, as a user gives them."""

    resident_cells: int | None = None
    """The cap (`--kv-resident`); 0 keeps the whole context resident, None is ``auto``."""
    ring_default_cells: int | None = None
    """None takes the policy table's, else the device's entry of DEFAULT_RING_CELLS."""
    victims: Victims | None = None
    """None takes the policy table's, else DEFAULT_VICTIMS."""
    selection: Selection = Selection()
    page_cells: int = PAGE_CELLS


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecConfig:
    """The knobs of the drafter."""

    drafts: int | Literal["auto"] | None = None
    """Tokens drafted a round; 0 is off.

    None takes the policy table's, else DEFAULT_DRAFTS, where the model has an MTP layer.
    """
    min_p: float = 0.0
    """Stop drafting when the drafter gives its own token less than this probability."""
    window_cells: int | None = None
    """W: the drafter reads the last W cells; 0 is all.

    None (``auto``) takes the policy table's, else AUTO_WINDOW.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """Everything that shapes a session before its memory is laid out."""

    kv: KvConfig = KvConfig()
    spec: SpecConfig = SpecConfig()
    policy: str | None = None
    """`fixed`, `depth`, `adapt`, `learned`; None asks the environment, then takes `fixed`."""
    table: str | None = None
    vram_budget_bytes: int | None = None
    rounds: Rounds = "captured"
    """What orders rounds on a GPU; a CPU has the reference alone."""
    prefetch: Prefetch | None = None
    """None takes DEFAULT_PREFETCH, and says nothing where that has nothing to fetch."""
    max_context_cells: int | None = None
    """None is the session's need (one `generate`); a served conversation names its own."""

    def check(self) -> None:
        """Raise UsageError for what no model could make right."""
        spec, page = self.spec, self.kv.page_cells
        if not 0 <= spec.min_p <= 1:
            raise UsageError(f"--spec-min-p: {spec.min_p} is outside 0 to 1")
        if (spec.window_cells or 0) < 0:
            raise UsageError(f"--mtp-window: {spec.window_cells} is negative; 0 reads everything")
        if spec.drafts not in (None, "auto") and not 0 <= int(spec.drafts) <= MAX_DRAFTS:
            raise UsageError(f"--spec: {spec.drafts} is outside 0 to {MAX_DRAFTS}")
        if not 1 <= page <= MAX_PAGE_CELLS:
            raise UsageError(f"--kv-page: {page} is outside 1 to {MAX_PAGE_CELLS} cells")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one continuation is drawn and where it ends."""

    max_new: int = DEFAULT_MAX_NEW
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repeat_penalty: float = 1.0
    """Logits of tokens seen before are divided by it where positive, else multiplied; 1 is off."""
    repeat_last_n: int = 64
    """How many tokens before the next one count as seen, the prompt's too; -1 is all, 0 none."""
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def check(self) -> None:
        """Raise UsageError for what nothing can be drawn by."""
        for name, value, low, high in (
            ("--temperature", self.temperature, 0.0, 100.0),
            ("--top-p", self.top_p, 0.0, 1.0),
            ("--min-p", self.min_p, 0.0, 1.0),
            ("--repeat-penalty", self.repeat_penalty, 0.01, 100.0),
        ):
            if not is_real(value):
                raise UsageError(f"{name}: {value!r} is not a number")
            if not low <= value <= high:
                raise UsageError(f"{name}: {value} is outside {low:g} to {high:g}")
        for name, number in (
            ("--max-new", self.max_new),
            ("--top-k", self.top_k),
            ("--seed", self.seed),
            ("--repeat-last-n", self.repeat_last_n),
        ):
            if not is_whole(number):
                raise UsageError(f"{name}: {number!r} is not a whole number")
        if self.max_new < 1:
            raise UsageError(f"--max-new: {self.max_new} is less than 1")
        if self.top_k < 0:
            raise UsageError(f"--top-k: {self.top_k} is negative; 0 keeps every token")
        if not 0 <= self.seed < 2**64:
            raise UsageError(f"--seed: {self.seed} is outside 0 to 2^64 - 1")
        if self.repeat_last_n < -1:
            raise UsageError(
                f"--repeat-last-n: {self.repeat_last_n} is less than -1; -1 counts every token, "
                "0 none"
            )
        self._check_stop()

    def _check_stop(self) -> None:
        if not isinstance(self.stop, (tuple, list)):
            raise UsageError(f"--stop: {self.stop!r} is no tuple of texts; write (text,)")
        for text in self.stop:
            if not isinstance(text, str):
                raise UsageError(f"--stop: {text!r} is not a text")
            if not text:
                raise UsageError("--stop: an empty text ends nothing; give at least one character")


def is_whole(value: object) -> bool:
    """Return whether `value` is a whole number, of any library; a truth value is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_real(value: object) -> bool:
    """Return whether `value` is a number, of any library; a truth value is none."""
    return isinstance(value, Real) and not isinstance(value, bool)
