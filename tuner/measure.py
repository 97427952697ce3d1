"""How one pair is measured: warm-up, order, repeats, and the check that both arms said the same.

Nothing here knows an engine: a *bench* is anything that can be asked for one timed run. With the
drafter's window and the drafts held fixed the same passage gives the same tokens in the same
rounds whatever the ring, so rounds per second is the measure and a difference in either is an
error of the engine (kind ``wrong output``), never a slow measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from strata.tuner.arms import ORDER, PairSpec

PROTOCOL: dict[str, Any] = {
    "version": 1,
    "order": list(ORDER),
    "warm_up": "a few tokens on the session, then back to the state after the prompt",
    "decoding": "greedy, end of text ignored",
    "measure": "rounds per second between the first and the last token",
    "repeats": "rewound to the state after the prompt; one sample",
}
"""What the study's protocol hash is taken over; change it together with the code below."""

MAX_REPEATS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What one run measured; names and units are those of the trial record."""

    tokens: int
    token_hash: str
    rounds: int
    decode_s: float
    rounds_per_s: float
    tok_s: float
    tokens_per_round: float
    accepted: list[int]
    drafted: list[int]
    tpot_p50_ms: float
    tpot_p99_ms: float
    prefill_s: float
    ttft_ms: float
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


class Bench(Protocol):
    """A session after its prompt, ready to be timed again and again."""

    default_decode_s: float
    """How long a run should decode where the plan leaves it to the device."""

    def warm_up(self, num_tokens: int) -> None:
        """Decode a few tokens and go back to the state after the prompt."""

    def run(self) -> RunResult:
        """Time one continuation from the state after the prompt and go back to it."""

    def close(self) -> None:
        """Free what the session holds."""


OpenBench = Callable[[int], Bench]
"""Opens a bench with a ring of so many cells."""


class WrongOutputError(Exception):
    """Report that repeating a run gave other tokens or rounds."""


def measure_pair(spec: PairSpec, open_bench: OpenBench) -> Iterator[tuple[int, RunResult | str]]:
    """Yield (position, result) for each run of a pair; a text instead says why it is wrong output.

    Both sessions are open, prefilled and warm before the first run is timed.
    """
    benches: dict[str, Bench] = {}
    try:
        for arm in dict.fromkeys(ORDER):
            benches[arm] = open_bench(spec.ring_cells(ORDER.index(arm)))
        for bench in benches.values():
            bench.warm_up(spec.warm_up)
        first: RunResult | None = None
        for position, arm in enumerate(ORDER):
            result = _repeat(benches[arm], spec.min_decode_s)
            first = first or result
            wrong = _difference(first, result, check_rounds=_one_window(first, result))
            yield position, wrong or result
    finally:
        for bench in benches.values():
            bench.close()


def _one_window(first: RunResult, other: RunResult) -> bool:
    return first.mtp_window_cells == other.mtp_window_cells


def _repeat(bench: Bench, min_decode_s: float | None) -> RunResult:
    """Run until `min_decode_s` of decoding was seen; the repeats are one sample."""
    if min_decode_s is None:
        min_decode_s = bench.default_decode_s
    results = [bench.run()]
    while sum(one.decode_s for one in results) < min_decode_s and len(results) < MAX_REPEATS:
        results.append(bench.run())
        if wrong := _difference(results[0], results[-1], check_rounds=True):
            raise WrongOutputError(f"a repeat of the same run differs: {wrong}")
    return results[0] if len(results) == 1 else _merge(results)


def _merge(results: list[RunResult]) -> RunResult:
    """Fold repeats into one result: times add up, rates are over all of the time."""
    seconds = sum(one.decode_s for one in results)

    def rate(name: str) -> float:
        return sum(float(getattr(one, name)) * one.decode_s for one in results) / seconds

    middle = sorted(results, key=lambda one: one.tpot_p50_ms)[len(results) // 2]
    return replace(
        results[0],
        decode_s=seconds,
        rounds_per_s=rate("rounds_per_s"),
        tok_s=rate("tok_s"),
        tpot_p50_ms=middle.tpot_p50_ms,
        tpot_p99_ms=max(one.tpot_p99_ms for one in results),
        repeats=len(results),
    )


def _difference(first: RunResult, other: RunResult, *, check_rounds: bool) -> str:
    """Return how a run's output differs from the pair's first, or nothing."""
    if other.token_hash != first.token_hash:
        return (
            f"tokens {other.token_hash[:12]} differ from the default ring's {first.token_hash[:12]}"
        )
    if check_rounds and other.rounds != first.rounds:
        return f"{other.rounds} rounds differ from the default ring's {first.rounds}"
    return ""


def as_columns(result: RunResult) -> Mapping[str, Any]:
    """Return a result as columns of the trial record."""
    return {name: getattr(result, name) for name in RunResult.__slots__}
