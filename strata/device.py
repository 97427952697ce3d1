"""Which device computes, what it is called, and with how many CPU threads."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from strata.errors import UsageError

DECODE_THREADS = 1
"""CPU threads that decode by default; the prompt takes every core.

The products of one decode step are small: a second core gained 15 % on an idle machine, and on a
busy one its barriers cost a factor of ten.
"""

MAX_THREADS = 1_024
"""More than any machine's cores; OpenMP ends the process where it cannot start its threads."""


def resolve_device(name: str) -> torch.device:
    """Return the device that `auto`, `cpu`, `cuda` or `cuda:N` names; raise UsageError else."""
    # cuBLAS would take 32 MiB of a GPU for itself, which no budget knows of; what multiplies large
    # matrices here are kernels.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"--device: {name!r} is not auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"--device: {name!r} is not there; this machine has "
            f"{torch.cuda.device_count()} CUDA devices"
        )
    return device


def device_name(device: torch.device) -> str:
    """Return the name that a policy table knows `device` by; a CPU's holds its threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{_cpu_model()} x{torch.get_num_threads()}"


@cache
def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def set_decode_threads(count: int | None) -> list[str]:
    """Let `count` CPU threads decode, DECODE_THREADS where it is None; return what to warn of.

    More threads than cores compute the same, but each step waits for all of them. Raises
    UsageError for a count that cannot be.
    """
    if count is not None and not 1 <= count <= MAX_THREADS:
        raise UsageError(f"--threads: {count} is outside 1 to {MAX_THREADS}")
    torch.set_num_threads(count or DECODE_THREADS)
    cores = _usable_cores()
    if count is None or count <= cores:
        return []
    return [
        f"--threads {count} is more than the {cores} CPU cores that this process may use; "
        "decoding is slower than with as many threads as cores"
    ]


@contextmanager
def every_core() -> Iterator[None]:
    """Compute with every core that this process may use while inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(_usable_cores())
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # not every system tells what a process may use
