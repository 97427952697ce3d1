"""One block of device memory per session, carved by name, and the ledger of who holds what."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from strata.errors import BudgetError
from strata.units import format_bytes

ALIGNMENT_BYTES = 256


def tensor_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the bytes that `Arena.take` sets aside for such a tensor, alignment included."""
    size = math.prod(shape) * dtype.itemsize
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Arena:
    """Carve named tensors out of one allocation; what is left over is never touched.

    The block is reserved whole when the session is created, so what does not fit is known
    before anything is computed, and the ledger is what was carved, not an estimate.
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
        self._used = 0
        self._ledger: dict[str, int] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of zeros, booked under `name` (several may share one)."""
        size = tensor_bytes(shape, dtype)
        end = self._used + size
        assert end <= self._block.numel(), f"arena overrun: {name} needs {size} bytes"
        view = self._block[self._used : self._used + math.prod(shape) * dtype.itemsize]
        self._used = end
        self._ledger[name] = self._ledger.get(name, 0) + size
        return view.view(dtype).view(shape)

    @property
    def device(self) -> torch.device:
        """Return the device that the block lives on."""
        return self._block.device

    @property
    def ledger(self) -> Mapping[str, int]:
        """Return the bytes carved so far, by name."""
        return dict(self._ledger)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the whole block."""
        return self._block.numel()

    def owns(self, tensor: torch.Tensor) -> bool:
        """Return whether `tensor` is a view of this arena's block."""
        return tensor.untyped_storage().data_ptr() == self._block.untyped_storage().data_ptr()
