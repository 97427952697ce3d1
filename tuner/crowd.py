"""Say how many workers a machine can hold: more would only wait, or end it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from strata.config import DEFAULT_RING_CELLS
from strata.tuner.arms import ArmGrid
from strata.tuner.environment import EngineFacts
from strata.tuner.plan import Plan

SPARE = 1.25
"""What a worker takes at most, over what the first one takes before its first pair."""

MEMORY = Path("/proc/meminfo")
GROUP = Path("/sys/fs/cgroup")


def most_workers(asked: int, *, pairs: int, facts: EngineFacts) -> tuple[int, str]:
    """Return how many of the workers asked for there can be here, and why no more, if so.

    The first worker runs already, and `facts` are what it told.
    """
    limits = [(max(1, pairs), f"because {pairs} pairs are left")]
    known = facts.environment
    if gpus := known.get("gpus"):
        limits.append((gpus, f"because there are {gpus} GPUs"))
    elif cores := known.get("cpus_usable"):
        limits.append((cores, f"because there are {cores} CPU cores"))
    free, each = available_bytes(), known.get("worker_bytes")
    if free is not None and each:
        room = 1 + int(free / (each * SPARE))
        limits.append((room, "because the memory holds no more of them"))
    most, reason = min(limits, key=lambda limit: limit[0])
    return (most, reason) if most < asked else (asked, "")


def most_pairs(plan: Plan) -> int:
    """Return the pairs that a plan comes to at most, whatever the device."""
    grids = [ArmGrid(plan, cells) for cells in DEFAULT_RING_CELLS.values()]
    return max(sum(1 for _ in grid.every_pair(study="")) for grid in grids)


def available_bytes() -> int | None:
    """Return the memory that more processes may fill now, None where the system does not tell."""
    found = []
    with suppress(OSError, ValueError):
        lines = MEMORY.read_text(encoding="ascii").splitlines()
        found += [int(one.split()[1]) << 10 for one in lines if one.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):  # a group without a limit says "max"
        limit, taken = (
            int((GROUP / name).read_text()) for name in ("memory.max", "memory.current")
        )
        found.append(max(0, limit - taken))
    return min(found, default=None)
