"""Which tensors the Triton kernels serve, and on which device they are launched."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

_NOWHERE = nullcontext()


def has_kernels(tensor: torch.Tensor) -> bool:
    """Return whether operations on `tensor` run as Triton kernels rather than in plain torch."""
    return tensor.is_cuda


def on_device_of(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Return a context in which a kernel is launched on the device of `tensor`."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return _NOWHERE
    return torch.cuda.device(tensor.device)
