"""Which tensors the Triton kernels serve, and on which device they are launched."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def has_kernels(tensor: torch.Tensor) -> bool:
    """Return whether operations on `tensor` run as Triton kernels rather than in plain torch."""
    return tensor.is_cuda


def on_device_of(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Return a context in which a kernel is launched on the device of `tensor`."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()
