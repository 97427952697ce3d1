"""Find out whose failure a failed pair is: its ring's, or that of the default ring by itself.

A pair holds two sessions, so what fails in one may be the other's doing: a default ring that does
not fit beside a larger one fits alone. Where the process can go on, the default ring is therefore
tried once more without the other. Only if it fails there, too, does the failure say nothing of the
ring.
"""

from __future__ import annotations

import gc
import traceback
from typing import Literal, get_args

from strata.errors import StrataError
from strata.tuner.arms import PairSpec
from strata.tuner.measure import OpenBench, SideError, open_side

FailedArm = Literal["arm", "default", "both"]
"""``default``: the default ring fails by itself; ``both``: so it does, and the ring failed first;
``arm``: anything else that the ring's session failed of, or the default's beside it."""
FAILED_ARMS: tuple[str, ...] = get_args(FailedArm)


def known_at_once(failure: SideError) -> FailedArm | None:
    """Return whose failure it is without a further try: the ring's where its session failed."""
    return "arm" if failure.side == "arm" else None


def find_failed_arm(spec: PairSpec, open_bench: OpenBench, failure: SideError) -> FailedArm | None:
    """Return whose failure it is, None where the process cannot be asked any more.

    Tries the default ring alone, from its opening through one run.
    """
    error = failure.__cause__
    if not isinstance(error, Exception) or not _can_go_on(error):
        return known_at_once(failure)
    traceback.clear_frames(error.__traceback__)  # they hold what the session had taken
    gc.collect()
    if not _fails_alone(spec, open_bench):
        return "arm"
    return "both" if failure.side == "arm" else "default"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on a GPU or on the host."""
    text = str(error).lower()
    return type(error).__name__ == "OutOfMemoryError" or any(
        sign in text
        for sign in ("out of memory", "can't allocate memory", "cannot allocate memory")
    )


def _can_go_on(error: Exception) -> bool:
    """Return whether an error leaves the process as it was; one of the device may not."""
    return isinstance(error, StrataError | MemoryError) or is_out_of_memory(error)


def _fails_alone(spec: PairSpec, open_bench: OpenBench) -> bool:
    try:
        bench = open_side(spec, "default", open_bench)
        try:
            bench.warm_up(spec.warm_up)
            bench.run()
        finally:
            bench.close()
    except Exception:
        return True
    return False
