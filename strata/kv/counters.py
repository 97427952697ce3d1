"""What residency did, counted where it happens."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Counts of one layer or a sum over layers.

    A lookup is one distinct page of one resolve; a miss is a lookup that had no slot and so
    crossed the bus, `bytes` in all; an overflow is a miss that found no slot and was read in
    place. So ``lookups == hits + misses`` and ``overflows <= misses``. What was fetched before it
    was asked for is `prefetched` and no part of `bytes`; the next resolve read `prefetched_used` of
    them. Both count a round that was launched ahead and not wanted: its bytes crossed the bus.
    """

    lookups: int = 0
    hits: int = 0
    misses: int = 0
    bytes: int = 0
    overflows: int = 0
    prefetched: int = 0
    prefetched_used: int = 0

    def count(self, *, lookups: int, misses: int, overflows: int, item_bytes: int) -> None:
        """Add one resolve."""
        self.lookups += lookups
        self.hits += lookups - misses
        self.misses += misses
        self.bytes += misses * item_bytes
        self.overflows += overflows

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            self.lookups + other.lookups,
            self.hits + other.hits,
            self.misses + other.misses,
            self.bytes + other.bytes,
            self.overflows + other.overflows,
            self.prefetched + other.prefetched,
            self.prefetched_used + other.prefetched_used,
        )

    def __sub__(self, other: Counters) -> Counters:
        return Counters(
            self.lookups - other.lookups,
            self.hits - other.hits,
            self.misses - other.misses,
            self.bytes - other.bytes,
            self.overflows - other.overflows,
            self.prefetched - other.prefetched,
            self.prefetched_used - other.prefetched_used,
        )


@dataclass(slots=True)
class LayerCounters:
    """One Counters a layer."""

    layers: list[Counters] = field(default_factory=list)

    def total(self) -> Counters:
        """Return the sum over layers."""
        return sum(self.layers, Counters())
