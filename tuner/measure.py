"""How one pair is measured: warm-up, order, repeats, and the check that both arms said the same.

Nothing here knows an engine: a *bench* is anything that can be asked for one timed run. With the
drafter's window and the drafts held fixed the same passage gives the same tokens in the same
rounds whatever the ring, so rounds per second is the measure and a difference in either is an
error of the engine (kind ``wrong output``), never a slow measurement. A pair whose purpose is
``prefill`` times the prompt and the first token, and has no rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from strata.tuner.arms import ORDER, PairSpec, Side

PROTOCOL: dict[str, Any] = {
    "version": 2,
    "order": list(ORDER),
    "warm_up": "a few tokens on the session, then back to the state after the prompt",
    "decoding": "greedy, end of text ignored",
    "measure": "rounds per second between the first and the last token",
    "repeats": "rewound to the state after the prompt; one sample",
    "prompt": "run once a passage by a session that drafts; every session of a pair restores it",
    "prefill": "a session from nothing to its first token, at most 5 times; one sample",
    "break-even": "one ring, without the drafter beside drafts that are made, verified and refused",
}
"""What the study's protocol hash is taken over; change it together with the code below."""

MAX_REPEATS = 256
MAX_PROMPTS = 5
"""Repeats of a whole prompt at most; each is a session of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one run measured; names and units are those of the trial record.

    What a run did not measure is None: a prompt has no rounds, a continuation no prompt.
    """

    tokens: int
    token_hash: str
    rounds: int | None = None
    decode_s: float | None = None
    rounds_per_s: float | None = None
    tok_s: float | None = None
    tokens_per_round: float | None = None
    accepted: list[int] | None = None
    drafted: list[int] | None = None
    tpot_p50_ms: float | None = None
    tpot_p99_ms: float | None = None
    prefill_s: float | None = None
    ttft_ms: float | None = None
    kv_lookups: int
    kv_hits: int
    kv_misses: int
    kv_bytes: int
    kv_overflows: int
    expert_lookups: int
    expert_misses: int
    expert_slots: int | None
    ledger: dict[str, int]
    mtp_window_cells: int | None
    repeats: int = 1

    @property
    def seconds(self) -> float:
        """Return the time that the run is about: its decoding, or its prompt."""
        return (self.prefill_s if self.decode_s is None else self.decode_s) or 0.0


class Bench(Protocol):
    """What one side of a pair times again and again: a session after its prompt, or a prompt."""

    default_decode_s: float
    """How long a run should decode where the plan leaves it to the device."""

    def warm_up(self, num_tokens: int) -> None:
        """Decode a few tokens and go back to the state after the prompt."""

    def run(self) -> RunResult:
        """Time one continuation from the state after the prompt and go back to it, or a prompt."""

    def close(self) -> None:
        """Free what the session holds."""


OpenBench = Callable[[PairSpec, int], Bench]
"""Opens a bench for one side of a pair with a ring of so many cells."""


class WrongOutputError(Exception):
    """Report that repeating a run gave other tokens or rounds."""


class SideError(Exception):
    """Report which side of a pair failed; what it failed of is the cause."""

    def __init__(self, side: Side) -> None:
        super().__init__(f"the {side} failed")
        self.side = side


OnSide = Callable[[Side], None]
"""Hears which side of a pair is at work from now on."""


def measure_pair(
    spec: PairSpec, open_bench: OpenBench, on_side: OnSide = lambda side: None
) -> Iterator[tuple[int, RunResult | str]]:
    """Yield (position, result) for each run of a pair; a text instead says why it is wrong output.

    Both sessions are open, prefilled and warm before the first run is timed. Raises SideError,
    with nothing left open, for whatever a side fails of.
    """
    benches: dict[Side, Bench] = {}
    sides: tuple[Side, Side] = ("arm", "default")
    try:
        for side in sides:  # a ring that does not fit ends the pair before more is done
            with _at(side, on_side):
                benches[side] = open_side(spec, side, open_bench)
        for side, bench in benches.items():
            with _at(side, on_side):
                bench.warm_up(spec.warm_up)
        first: RunResult | None = None
        most = MAX_PROMPTS if spec.purpose == "prefill" else MAX_REPEATS
        for position, side in enumerate(ORDER):
            with _at(side, on_side):
                result = _repeat(benches[side], spec.min_decode_s, most)
            first = first or result
            wrong = _difference(first, result, check_rounds=_one_window(first, result))
            yield position, wrong or result
    finally:
        for bench in benches.values():
            bench.close()


def open_side(spec: PairSpec, side: Side, open_bench: OpenBench) -> Bench:
    """Return the bench of one side of a pair."""
    position = ORDER.index(side)
    return open_bench(spec.side(position), spec.ring_cells(position))


@contextmanager
def _at(side: Side, on_side: OnSide) -> Iterator[None]:
    """Say which side is at work, and whose failure it is where it fails."""
    on_side(side)
    try:
        yield
    except WrongOutputError:
        raise
    except Exception as error:
        raise SideError(side) from error


def _one_window(first: RunResult, other: RunResult) -> bool:
    return first.mtp_window_cells == other.mtp_window_cells


def _repeat(bench: Bench, min_decode_s: float | None, most: int) -> RunResult:
    """Run until `min_decode_s` was timed, `most` times at most; the repeats are one sample."""
    if min_decode_s is None:
        min_decode_s = bench.default_decode_s
    results = [bench.run()]
    while sum(one.seconds for one in results) < min_decode_s and len(results) < most:
        results.append(bench.run())
        if wrong := _difference(results[0], results[-1], check_rounds=True):
            raise WrongOutputError(f"a repeat of the same run differs: {wrong}")
    return results[0] if len(results) == 1 else _merge(results)


def _merge(results: list[RunResult]) -> RunResult:
    """Fold repeats into one result: times add up, rates are over all of the time.

    A prompt's times are means, because its record has no rate.
    """
    seconds = sum(one.seconds for one in results)

    def mean(name: str) -> float | None:
        values = [getattr(one, name) for one in results]
        return None if None in values else sum(values) / len(values)

    def rate(name: str) -> float | None:
        weighted = [(getattr(one, name), one.seconds) for one in results]
        if any(value is None for value, _ in weighted):
            return None
        return sum(float(value) * share for value, share in weighted) / seconds

    middle = sorted(results, key=lambda one: one.tpot_p50_ms or 0.0)[len(results) // 2]
    return replace(
        results[0],
        decode_s=None if results[0].decode_s is None else seconds,
        rounds_per_s=rate("rounds_per_s"),
        tok_s=rate("tok_s"),
        tpot_p50_ms=middle.tpot_p50_ms,
        tpot_p99_ms=max(one.tpot_p99_ms or 0.0 for one in results) or None,
        prefill_s=mean("prefill_s"),
        ttft_ms=mean("ttft_ms"),
        repeats=len(results),
    )


def _difference(first: RunResult, other: RunResult, *, check_rounds: bool) -> str:
    """Return how a run's output differs from the pair's first, or nothing."""
    if other.token_hash != first.token_hash:
        return (
            f"tokens {other.token_hash[:12]} differ from the pair's first {first.token_hash[:12]}"
        )
    if check_rounds and other.rounds != first.rounds:
        return f"{other.rounds} rounds differ from the pair's first {first.rounds}"
    return ""


def as_columns(result: RunResult) -> Mapping[str, Any]:
    """Return a result as columns of the trial record."""
    return {name: getattr(result, name) for name in RunResult.__slots__}
