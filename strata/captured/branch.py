"""A side line of a captured round: launches beside those that follow in the code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch


class Branch:
    """Fork launches off a capture and join them; launches that are not captured stay in order.

    Nothing between the fork and the join may write what the branch reads or touch what it writes.
    A launch right behind a join has two before it, so it may not overlap with either.
    """

    def __init__(self, device: torch.device, name: str) -> None:
        """Take the stream of that `name`: branches of one name may not be open at once."""
        self._device, self._name = device, name
        self._side = _side_stream(device, name) if device.type == "cuda" else None
        self._open = False

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Put what is launched inside beside what is launched behind it."""
        if self._side is None or not torch.cuda.is_current_stream_capturing():
            yield
            return
        assert not self._open, f"the branch {self._name} was not joined"
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        self._open = True
        with torch.cuda.stream(self._side):
            yield

    def join(self) -> None:
        """Let what is launched from here on wait for what was forked, if anything was."""
        if self._open and self._side is not None:
            self._open = False
            torch.cuda.current_stream(self._device).wait_stream(self._side)


@cache
def _side_stream(device: torch.device, name: str) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
