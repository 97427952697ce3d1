"""From split attention to the feed-forward's input: reduce, project, add, norm, route.

Shapes: R rows, Q query heads, D head dimension, H hidden, E experts, k experts a token, N splits.
Contract here, plain torch in `ref`, one launch on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strata.kernels import device
from strata.kernels.out_proj import ref
from strata.kernels.paged_attention import Splits
from strata.kernels.wide import is_wide, split_count
from strata.lm.linear import Linear

__all__ = ["Router", "chunk_count", "part_shape", "project_out"]

CHUNK_DIM = 32
"""Values of a head that one program reduces and projects."""


def chunk_count(dim: int) -> int:
    """Return the programs that share a head of `dim` values, and its parts."""
    return -(-dim // CHUNK_DIM)


def part_shape(rows: int, hidden: int, heads: int, dim: int, experts: int) -> tuple[int, ...]:
    """Return the shape of the float32 scratch of rows with `heads` queries of `dim` each."""
    if not is_wide(hidden):
        return (rows, heads * chunk_count(dim), hidden)
    return (rows, heads * dim + experts + hidden * split_count(heads * dim))


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """A layer's router, and where its choice for each row goes."""

    weight: Linear  # [E, H]
    normalise: bool
    ids: torch.Tensor  # [R, k], int32
    weights: torch.Tensor  # [R, k], the model's type


def project_out(
    splits: Splits,
    out: Linear,
    gain: torch.Tensor,
    *,
    eps: float,
    residual: torch.Tensor,
    normed: torch.Tensor,
    parts: torch.Tensor,
    counter: torch.Tensor,
    router: Router | None = None,
    row: torch.Tensor | None = None,
) -> None:
    """Add the projected attention to `residual` [R, H] and write its norm into `normed` [R, H].

    `out` is [H, Q * D]. With a `router` each row's k best experts are chosen as `experts.route`
    chooses them. With `row` ([1], int64, on the device) there is one row of attention whose
    residual is that row; the sum is row 0. `parts` (`part_shape`, float32; more will do at a large
    shape) is scratch, `counter` (`wide.counter_shape`, int32) is zero before and after.
    """
    if not device.has_kernels(residual):
        ref.project_out(
            splits, out, gain, eps=eps, residual=residual, normed=normed, router=router, row=row
        )
        return
    from strata.kernels.out_proj import triton, wide

    launch = wide.project_out if is_wide(normed.shape[1]) else triton.project_out
    launch(
        splits,
        out.weight,
        gain,
        eps=eps,
        residual=residual,
        normed=normed,
        parts=parts,
        counter=counter,
        router=router,
        row=row,
    )
