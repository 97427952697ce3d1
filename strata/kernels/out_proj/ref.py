"""What follows the attention, in plain torch; see the package for the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from strata.kernels.experts import ref as experts
from strata.kernels.paged_attention import Splits
from strata.lm.layers import rms_norm
from strata.lm.linear import Linear

if TYPE_CHECKING:
    from strata.kernels.out_proj import Router


def project_out(
    splits: Splits,
    out: Linear,
    gain: torch.Tensor,
    *,
    eps: float,
    residual: torch.Tensor,
    normed: torch.Tensor,
    router: Router | None,
    row: torch.Tensor | None,
) -> None:
    """Write the new residual, its norm and the choice of the router."""
    attended = splits.reduced(len(normed)).to(residual.dtype)
    before = residual[: len(normed)] if row is None else residual.index_select(0, row)
    after = before + out(attended)
    residual[: len(after)] = after
    normed.copy_(rms_norm(after, gain, eps))
    if router is not None:
        ids, weights = experts.route(
            router.weight(normed), count=router.ids.shape[1], normalise=router.normalise
        )
        router.ids.copy_(ids)
        router.weights.copy_(weights)
