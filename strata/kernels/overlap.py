"""Let a kernel begin while the one before it ends (programmatic dependent launch, Hopper on).

A kernel that is launched with `overlapped()` may start as soon as every program of the one before
has called `let_next_begin`. What it reads before `wait_for_previous` must be constant, weights for
the most part; after the wait everything that earlier kernels wrote is there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

FIRST_CAPABILITY = (9, 0)


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):
    """Wait until the launches before this one have ended."""
    if OVERLAP:
        gdc_wait()


@triton.jit
def let_next_begin(OVERLAP: tl.constexpr):
    """Say that the next launch may begin as far as this program is concerned."""
    if OVERLAP:
        gdc_launch_dependents()


def overlapped(tensor: torch.Tensor, *, joined: bool = False) -> dict[str, Any]:
    """Return launch arguments for a kernel with an `OVERLAP` parameter on `tensor`'s device.

    A launch where lines of a graph have `joined` has several before it. It begins behind all of
    them, and the next one may still begin early.
    """
    if not tensor.is_cuda or not _can_overlap(tensor.device):
        return {"OVERLAP": False}
    return {"OVERLAP": True, "launch_pdl": not joined}


@cache
def _can_overlap(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= FIRST_CAPABILITY
