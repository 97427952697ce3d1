"""A matrix product whose weights are laid out once for the machine it runs on."""

from __future__ import annotations

import torch
import torch.nn.functional as F

SMALLEST_PACKED = 1 << 15
"""Weights below this stay plain: a packed product costs 10 us at least, a plain 48 x 256 2 us."""


class Linear:
    """Return ``x @ weight.T`` for `x` [R, in]; the weight is [out, in].

    On a CPU in float32 the weight is packed once for oneDNN, which then needs nearly the same
    time for 1 to 8 rows and gives a row the same bits whatever rows stand beside it (measured:
    640 x 256 took 15, 15, 14 and 16 us for 1, 2, 4 and 8 rows packed, 9, 17, 26 and 27 us plain).
    """

    def __init__(self, weight: torch.Tensor) -> None:
        self.shape = tuple(weight.shape)
        self.dtype = weight.dtype
        self.packed = (
            weight.device.type == "cpu"
            and weight.dtype == torch.float32
            and weight.numel() >= SMALLEST_PACKED
            and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        )
        if self.packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self._weight = weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product [R, out]."""
        if self.packed:
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self._weight, None, "none", [], ""
            )
            return product
        return F.linear(x, self._weight)

    @property
    def weight(self) -> torch.Tensor:
        """Return the weight [out, in] for a kernel; it must not be packed."""
        assert not self.packed, "a packed weight is oneDNN's alone"
        return self._weight

    @property
    def nbytes(self) -> int:
        """Return the bytes of the weight."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize
