"""Where kernel tests run, and how outputs are compared."""

from __future__ import annotations

import pytest
import torch

DEVICES = [
    pytest.param(
        "cpu",
        marks=pytest.mark.skipif(
            torch.cuda.is_available(), reason="kernels are compiled where there is a device"
        ),
    ),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
"""Interpreted on the CPU where there is no device, else native."""


def rms_ratio(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the norm of the difference over the norm of `expected`, NaN where one holds a NaN."""
    got, expected = got.double(), expected.double()
    return float((got - expected).norm() / expected.norm().clamp_min(1e-30))
