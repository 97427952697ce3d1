"""The real trial server on a real engine, some of whose sessions fail where sessions do fail.

The seed of the passage says what fails: the reservation of a session's memory when it opens, or a
round of the engine while it warms up or decodes. Everything else is what a sweep runs.
"""

from __future__ import annotations

import sys
from typing import Any

import strata.session
from strata.arena import Arena
from strata.engine import Engine, Round
from strata.tuner import trial
from strata.tuner.arms import PairSpec
from strata.tuner.measure import Bench

OPENING, WARM_UP, DECODE, ALONE, BESIDE = range(1, 6)
FAILS = {OPENING: "arm", WARM_UP: "arm", DECODE: "arm", ALONE: "default", BESIDE: "default"}
"""Whose session fails, by seed. BESIDE is a default that does not fit beside the ring."""

_reserving: list[int] = []
_rounds_left: dict[int, int] = {}
_open: set[str] = set()


class FailingEngine(trial.StrataEngine):
    """Opens sessions of which some fail."""

    def open_bench(self, spec: PairSpec, ring_cells: int) -> Bench:
        seed = int(spec.passage.partition(":")[2])
        side = "default" if ring_cells == spec.default_ring_cells else "arm"
        mine = FAILS.get(seed) == side and spec.default_ring_cells != spec.arm_ring_cells
        if mine and (seed in (OPENING, ALONE) or (seed == BESIDE and "arm" in _open)):
            _reserving.append(seed)
        try:
            bench: Any = super().open_bench(spec, ring_cells)
        finally:
            _reserving.clear()
        if mine and seed in (WARM_UP, DECODE):
            _rounds_left[id(bench._session.engine)] = 2 if seed == WARM_UP else 9
        _open.add(side)
        close = bench.close

        def note_close() -> None:
            _open.discard(side)
            close()

        bench.close = note_close
        return bench  # type: ignore[no-any-return]


def reserve(*words: Any, **named: Any) -> Arena:
    """Reserve a session's memory, unless it is to fail."""
    import torch

    if _reserving:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return Arena(*words, **named)


def failing_collect(self: Engine) -> Round:
    """End a round, unless the engine has run as many as it is to."""
    import torch

    if id(self) in _rounds_left:
        _rounds_left[id(self)] -= 1
        if not _rounds_left[id(self)]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
    return collect(self)


if __name__ == "__main__":
    collect = Engine.collect
    Engine.collect = failing_collect  # type: ignore[method-assign]
    strata.session.Arena = reserve  # type: ignore[assignment,misc]
    trial.StrataEngine = FailingEngine  # type: ignore[misc]
    sys.exit(trial.main())
