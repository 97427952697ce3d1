"""Where kernel tests run, and how outputs are compared."""

from __future__ import annotations

import pytest
import torch

from strata import engine
from strata.lm.layers import rms_norm
from strata.prompt import plan, runner

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


def seed_by(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the last `rows` of a prompt say what a ring is seeded with: 64 take seconds interpreted.

    A row selects by itself, so that more of them would do the same more often.
    """
    for module in (engine, plan, runner):
        monkeypatch.setattr(module, "SEED_ROWS", rows)


def check_norm(
    normed: torch.Tensor, residual: torch.Tensor, gain: torch.Tensor, eps: float = 1e-6
) -> None:
    """Assert that `normed` is the norm of the `residual` that was stored, in its rounded values.

    The norm of a sum that was not rounded yet would differ in every second bfloat16; a sum in
    another order changes few.
    """
    exact = rms_norm(residual.double(), gain.double(), eps)
    assert rms_ratio(normed, exact) < 1e-2
    if normed.dtype == torch.bfloat16:
        expected = exact.to(normed.dtype)
        if not torch.cuda.is_available():  # the interpreter cuts short where a device rounds
            expected = (exact.float().view(torch.int32) & -0x10000).view(torch.float32)
        assert (normed == expected).double().mean() > 0.97


def rms_ratio(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the norm of the difference over the norm of `expected`, NaN where one holds a NaN."""
    got, expected = got.double(), expected.double()
    return float((got - expected).norm() / expected.norm().clamp_min(1e-30))
