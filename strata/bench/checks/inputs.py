"""Random inputs of a run's shapes, and what counts as agreement."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strata.lm.config import LMConfig

ROWS = 3
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
"""Norm of the difference over the norm, for results that are sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Shapes of a run, where it computes, and the source of its random inputs."""

    config: LMConfig
    device: torch.device
    dtype: torch.dtype
    random: torch.Generator

    def normal(self, *shape: int, scale: float = 1.0) -> torch.Tensor:
        """Return normal numbers times `scale` in the run's type, on the CPU."""
        return (torch.randn(*shape, generator=self.random) * scale).to(self.dtype)

    def whole(self, high: int, *shape: int) -> torch.Tensor:
        """Return whole numbers from minus `high` to `high` in the run's type, on the CPU."""
        return torch.randint(-high, high + 1, shape, generator=self.random).to(self.dtype)

    def order(self, count: int) -> torch.Tensor:
        """Return 0 to `count` - 1 in random order."""
        return torch.randperm(count, generator=self.random)

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of `tensor` on the device."""
        return tensor.clone().to(self.device)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of `tensor` as kernels read host memory."""
        return tensor.pin_memory() if self.device.type == "cuda" else tensor.clone()

    def wait(self) -> None:
        """Wait until host memory holds what kernels wrote."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def near(self, got: torch.Tensor, expected: torch.Tensor) -> bool:
        """Return whether sums agree; a NaN does not."""
        got, expected = got.cpu().double(), expected.cpu().double()
        return bool((got - expected).norm() <= TOLERANCE[self.dtype] * expected.norm())


def same_bits(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether both hold the same bytes."""
    return torch.equal(got.cpu().view(torch.uint8), expected.cpu().view(torch.uint8))
