"""Keep a process calm, before torch is imported: threads that do not spin, a heap that stays.

A thread that waits at a barrier spins for milliseconds by default. On a machine whose cores are
busy that made a prompt of 1,024 cells take 17.7 s instead of 0.4 s. And glibc gives the end of its
heap back to the system whenever it is free: where the tensors of a window happened to lie there,
every window paid their page faults again, and a ring read in place decoded at a quarter of its
speed, by the luck of the process.
"""

from __future__ import annotations

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 32 << 20
"""The most that glibc takes for blocks of its heap on a 64-bit machine."""


def calm() -> None:
    """Let waiting threads sleep, unless the user has said otherwise, and freed memory stay."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return  # another C library has other habits
    mallopt(M_TRIM_THRESHOLD, 16 * KEPT_BYTES)
    mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
