"""Copies between host and device that run beside the compute, in an order that marks hold."""

from __future__ import annotations

from itertools import cycle

import torch

Mark = torch.cuda.Event | None
"""A point in the work of a stream; None where everything runs in order."""


class Lane:
    """Copies that follow each other; nothing waits for the host."""

    def __init__(self, device: torch.device, *, marks: int) -> None:
        """Take turns with `marks` marks: after as many copies one stands for a later copy."""
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            events = [torch.cuda.Event() for _ in range(marks)]  # type: ignore[no-untyped-call]
            self._marks = cycle(events)

    def copy(self, target: torch.Tensor, source: torch.Tensor, *after: Mark) -> Mark:
        """Copy `source` to `target` once all of `after` are reached; return the copy's mark."""
        if self._stream is None:
            target.copy_(source)
            return None
        for mark in after:
            if mark is not None:
                self._stream.wait_event(mark)
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        reached = next(self._marks)
        reached.record(self._stream)
        return reached


class Compute:
    """The stream that computes on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None

    def begin(self) -> None:
        """Take the stream that is current now; marks are of it from here on."""
        if self._device.type == "cuda":
            self._stream = torch.cuda.current_stream(self._device)

    def mark(self) -> Mark:
        """Return a mark behind what was launched so far."""
        if self._stream is None:
            return None
        mark: Mark = self._stream.record_event()
        return mark

    def wait(self, mark: Mark) -> None:
        """Let what is launched next wait for `mark`."""
        if mark is not None and self._stream is not None:
            self._stream.wait_event(mark)
