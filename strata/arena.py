"""One block of device memory per session, carved by name, and the ledger of who holds what."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from strata.errors import BudgetError
from strata.units import format_bytes

ALIGNMENT_BYTES = 256
BLOCK_STEP_BYTES = 2 << 20
"""Bytes that a GPU's driver maps at a time."""
LEAST_BLOCK_BYTES = 10 << 20
"""From here on PyTorch's allocator takes what it is asked for, in whole steps; below, 20 MiB."""
OUTSIDE_BYTES = 2 << 20
"""What PyTorch takes of a GPU for tensors of a few KiB, whoever asks for the first one."""
Placed = tuple[int, tuple[int, ...], torch.dtype]
"""Where a lent tensor begins, in bytes; its shape; its type."""


def tensor_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the bytes that `Arena.take` sets aside for such a tensor, alignment included."""
    size = math.prod(shape) * dtype.itemsize
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def block_bytes(size_bytes: int, device: torch.device) -> int:
    """Return the bytes to ask `device` for, so that its driver gives neither more nor less."""
    if device.type != "cuda":
        return size_bytes
    size = max(size_bytes, LEAST_BLOCK_BYTES)
    return -(-size // BLOCK_STEP_BYTES) * BLOCK_STEP_BYTES


def outside_bytes(device: torch.device) -> int:
    """Return the bytes of `device` that a budget leaves for what is in no block."""
    return OUTSIDE_BYTES if device.type == "cuda" else 0


class Arena:
    """Carve named tensors out of one allocation; what is left over is never touched.

    The block is reserved whole when the session is created, so what does not fit is known
    before anything is computed, and the ledger is what was carved, not an estimate. Tensors that
    a prompt may overwrite are carved from the front, all others from the back, so that the room
    of the first and whatever is left over are one piece.
    """

    def __init__(self, size_bytes: int, device: torch.device) -> None:
        """Reserve `size_bytes`; raise BudgetError where `device` does not have them."""
        # Zero, not empty: attention masks cells that nobody wrote yet, and a mask does not
        # silence a NaN.
        try:
            self._block = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        except RuntimeError as error:  # a CPU's allocator has no error of its own
            raise BudgetError(
                f"{device} has no {format_bytes(size_bytes)} left for this session; lower "
                "--kv-resident, or give a --vram-budget that the device holds"
            ) from error
        self._end = size_bytes // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        self._lendable = 0
        self._kept = 0
        self._ledger: dict[str, int] = {}

    def take(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, *, lendable: bool = False
    ) -> torch.Tensor:
        """Return a tensor of zeros, booked under `name` (several may share one)."""
        size = tensor_bytes(shape, dtype)
        fits = self._lendable + self._kept + size <= self._end
        assert fits, f"arena overrun: {name} needs {size} bytes"
        if lendable:
            start, self._lendable = self._lendable, self._lendable + size
        else:
            self._kept += size
            start = self._end - self._kept
        self._ledger[name] = self._ledger.get(name, 0) + size
        return self._view(start, shape, dtype)

    def lend(
        self, name: str, size_bytes: int, shapes: Mapping[str, Placed]
    ) -> dict[str, torch.Tensor]:
        """Return tensors in the first `size_bytes`, over the lendable ones and what is free.

        What exceeds the lendable ones is booked under `name`. Contents are undefined.
        """
        assert size_bytes + self._kept <= self._end, f"arena overrun: {name} of {size_bytes} bytes"
        if size_bytes > self._lendable:
            self._ledger[name] = size_bytes - self._lendable
            self._lendable = size_bytes
        return {key: self._view(*placed) for key, placed in shapes.items()}

    def _view(self, start: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = math.prod(shape) * dtype.itemsize
        return self._block[start : start + size].view(dtype).view(shape)

    @property
    def device(self) -> torch.device:
        """Return the device that the block lives on."""
        return self._block.device

    @property
    def ledger(self) -> Mapping[str, int]:
        """Return the bytes carved so far, by name."""
        return dict(self._ledger)

    @property
    def used_bytes(self) -> int:
        """Return the bytes carved so far."""
        return self._lendable + self._kept

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the whole block."""
        return self._block.numel()

    def owns(self, tensor: torch.Tensor) -> bool:
        """Return whether `tensor` is a view of this arena's block."""
        return tensor.untyped_storage().data_ptr() == self._block.untyped_storage().data_ptr()
