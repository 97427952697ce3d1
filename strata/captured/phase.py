"""One launch of a captured graph, or the plain function where none is asked for."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache

import torch

WARM_UP_RUNS = 2
"""Runs before a capture, so that libraries and kernels are loaded outside of it."""


class Phase:
    """One phase of a round, captured when it is made."""

    def __init__(
        self,
        body: Callable[[], None],
        undo: Callable[[], None],
        device: torch.device,
        pool: object,
        capture: bool,
    ) -> None:
        """Take `body`, or `capture` it.

        After each warm-up run `undo` puts back what it changed besides K/V, so every run writes
        the same cells, those of the round to come. Runs that moved on would write cells that have
        no page, and overrun the slack of the drafter's ring.
        """
        self._body = body
        self._graph: torch.cuda.CUDAGraph | None = None
        if not capture:
            return
        _know_generator(device)
        stream = _capture_stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        try:
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP_RUNS):
                    body()
                    undo()
        finally:  # also after Ctrl-C: a rewind may not overtake what is under way
            torch.cuda.current_stream(device).wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        # A graph that the collector frees while another is captured spoils the capture.
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.graph(self._graph, pool=pool, stream=stream):  # type: ignore[arg-type]
                body()
        finally:
            if collecting:
                gc.enable()

    def run(self) -> None:
        """Launch the phase; on a GPU this returns before it has run."""
        if self._graph is None:
            self._body()
        else:
            self._graph.replay()


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream that captures on `device`: torch's own is of whichever device came first.

    One for all phases, because a pool hands a block on only within its stream, and their warm-ups,
    because cuBLAS keeps a workspace for every stream that it has seen.
    """
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@cache
def _know_generator(device: torch.device) -> torch.cuda.CUDAGraph:
    """Return a graph, never captured, that knows PyTorch's own generator.

    The first graph to know it takes two numbers on its stream. That would be the one that captures,
    which nothing else takes memory on, so they would cost a segment of 2 MiB.
    """
    graph = torch.cuda.CUDAGraph()
    register = getattr(graph, "register_generator_state", None)  # PyTorch need not have it for ever
    if register is not None:
        with torch.cuda.device(device):
            register(torch.cuda.default_generators[torch.cuda.current_device()])
    return graph
