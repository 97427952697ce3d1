"""Hit rate by ring of victim policies over one recorded trace, beside the optimum.

Clock and LRFU are the engine's own. LRU and MIN (Belady, 1966: the page whose next use lies
farthest gives way, which no policy can beat) run through the same residency.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from strata.bench.trace import Resolve, Trace
from strata.kv.residency import Residency
from strata.kv.victims import Clock, Lrfu, VictimPolicy

POLICIES = ("clock", "lrfu", "lru", "belady")
FIRST_ROUNDS = 32
"""Rounds that count as right behind the prompt."""
LAST_ROUNDS = 64
"""Rounds at the end, when what the prompt left has been replaced."""
NEVER = 1 << 30


class Lru:
    """Least recently used."""

    def __init__(self, slots: int) -> None:
        self._read_at = torch.zeros(slots, dtype=torch.long)
        self._time = 0

    def touch(self, layer: int, slots: torch.Tensor) -> None:
        """Note the time of a read."""
        self._time += 1
        self._read_at[slots] = self._time

    def choose(self, layer: int, evictable: torch.Tensor, count: int) -> torch.Tensor:
        """Return the slots that were read longest ago."""
        candidates = evictable.nonzero()[:, 0]
        return candidates[self._read_at[candidates].argsort(stable=True)[:count]]

    def clear(self) -> None:
        """Forget every read."""
        self._read_at.zero_()
        self._time = 0

    def state(self) -> dict[str, torch.Tensor]:
        """Return the times of the last reads, one layer."""
        return {"read_at": self._read_at[None]}


class Belady(Lru):
    """The optimum: it knows the whole trace."""

    def __init__(self, slots: int, next_use: torch.Tensor, owner: torch.Tensor) -> None:
        super().__init__(slots)
        self._next_use = next_use  # [T + 1, P], the first resolve from t on that reads p
        self._owner = owner
        self.now = 0

    def choose(self, layer: int, evictable: torch.Tensor, count: int) -> torch.Tensor:
        """Return the slots whose pages are read latest from now on."""
        candidates = evictable.nonzero()[:, 0]
        distance = self._next_use[self.now, self._owner[0, candidates].long()]
        return candidates[distance.argsort(descending=True, stable=True)[:count]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRate:
    """What a policy reached with one ring; ratios of lookups, all layers together."""

    policy: str
    ring_cells: int
    multiple: int
    seeded: bool
    first_ratio: float
    """In the first FIRST_ROUNDS rounds."""
    last_ratio: float
    """In the last LAST_ROUNDS rounds."""
    all_ratio: float


def replay(trace: Trace, multiples: list[int]) -> Iterator[HitRate]:
    """Yield the hit rates of every policy for rings of `multiples` times the selection.

    A ring holds the tail pages besides. Seeded or not: what the prompt left in the ring.
    """
    futures = [_next_use(resolves, trace.num_pages) for resolves in trace.resolves]
    for multiple in multiples:
        slots = min(multiple * trace.select_pages + trace.tail, trace.num_pages)
        for policy in POLICIES:
            for seeded in (True, False):
                hits = sum(
                    _replay_layer(trace, layer, future, policy, slots, seeded=seeded)
                    for layer, future in enumerate(futures)
                )
                assert isinstance(hits, torch.Tensor)
                parts = (hits[:FIRST_ROUNDS], hits[-LAST_ROUNDS:], hits)
                first, last, every = (float(h / n) for h, n in (part.sum(0) for part in parts))
                yield HitRate(
                    policy=policy,
                    ring_cells=slots * trace.page_cells,
                    multiple=multiple,
                    seeded=seeded,
                    first_ratio=first,
                    last_ratio=last,
                    all_ratio=every,
                )


def _replay_layer(
    trace: Trace, layer: int, future: torch.Tensor, name: str, slots: int, *, seeded: bool
) -> torch.Tensor:
    """Return hits and lookups [T, 2] of one layer."""
    table = torch.empty(1, trace.num_pages, dtype=torch.int32)
    owner = torch.empty(1, slots, dtype=torch.int32)
    policy = _policy(name, slots, future, owner)
    residency = Residency(policy, table, owner)
    if seeded:
        residency.seed(0, trace.rankings[layer][:slots].sort().values)
    born = trace.born_pages
    hits = []
    for now, resolve in enumerate(trace.resolves[layer]):
        if isinstance(policy, Belady):
            policy.now = now
        # Pages born since the last resolve have no content to bring in: no lookup, no miss.
        for page in range(born, int(resolve.pages[-1]) + 1):
            residency.admit_new(0, page, first_tail=page - trace.tail + 1, replace=True)
            born = page + 1
        before, _ = residency.resolve(0, resolve.pages, keep_from=resolve.keep_from)
        hits.append([int((before >= 0).sum()), len(resolve.pages)])
    return torch.tensor(hits, dtype=torch.float64)


def _policy(name: str, slots: int, future: torch.Tensor, owner: torch.Tensor) -> VictimPolicy:
    device = owner.device
    if name == "clock":
        return Clock(1, slots, device)
    if name == "lrfu":
        return Lrfu(1, slots, device)
    return Lru(slots) if name == "lru" else Belady(slots, future, owner)


def _next_use(resolves: list[Resolve], num_pages: int) -> torch.Tensor:
    """Return [T + 1, P]: the number of the first resolve at or after t that reads page p."""
    use = torch.full((len(resolves) + 1, num_pages), NEVER, dtype=torch.long)
    for t in range(len(resolves) - 1, -1, -1):
        use[t] = use[t + 1]
        use[t, resolves[t].pages] = t
    return use
