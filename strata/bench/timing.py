"""Time launches, captured graphs above all, with the device's own events."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from strata.errors import UsageError

SAMPLE_MS = 20.0
"""Launches of a sample together take about as long as this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Microseconds of one call: median, least and most over samples."""

    us: float
    min_us: float
    max_us: float


def require_gpu(command: str) -> torch.device:
    """Return the current CUDA device; raise UsageError where there is none."""
    if not torch.cuda.is_available():
        raise UsageError(f"{command} measures a CUDA device, and this machine has none")
    return torch.device("cuda", torch.cuda.current_device())


def capture(body: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Return `body` as a graph; it runs once before, so that kernels are compiled outside."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        body()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    return graph


def time_calls(run: Callable[[], None], *, calls: int, samples: int) -> Timing:
    """Return the time of one of the `calls` calls that `run` launches, a graph's replay mostly."""
    once = _elapsed_ms(run, 3) / 3
    times = max(1, round(SAMPLE_MS / max(once, 1e-3)))
    each = [_elapsed_ms(run, times) / times / calls * 1e3 for _ in range(samples)]
    return Timing(us=statistics.median(each), min_us=min(each), max_us=max(each))


def _elapsed_ms(run: Callable[[], None], times: int) -> float:
    start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start.record()
    for _ in range(times):
        run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))
