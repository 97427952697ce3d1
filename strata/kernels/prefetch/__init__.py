"""Fetch what will be asked for next, beside the compute, into slots that no table names meanwhile.

Four steps, each a launch: a forecast lists what is wanted (`forecast_pages`, `forecast_experts`),
`reserve` takes slots away from their owners, `fetch` fills them, `publish` names them. Between
`reserve` and `publish` a slot belongs to nobody, so no reader can meet half of a page. A wrong
forecast costs bytes; results do not know what is resident.

Shapes: L layers, P pages and S slots of a layer, N slots reserved a layer at most, W wanted.
"""

from __future__ import annotations

import torch

from strata.kernels import device
from strata.kernels.prefetch import ref
from strata.kernels.prefetch.state import PREFETCHED, USED, Pending
from strata.kernels.resolve import MAX_LRFU_SLOTS, ResolveState
from strata.lm.linear import Linear

__all__ = [
    "PREFETCHED",
    "USED",
    "Pending",
    "fetch",
    "forecast_experts",
    "forecast_pages",
    "publish",
    "reserve",
]


def forecast_pages(
    scores: torch.Tensor, own: torch.Tensor, table: torch.Tensor, out: torch.Tensor, *, tail: int
) -> None:
    """Write each layer's best scored pages without a slot into `out` [L, W], best first.

    `scores` [L, P] are one row's, the last layer's first; `own` [1] is the page that the row
    stands in, read on the device. Pages 1 to `own` - `tail` have scores. `table` [L, P] says who
    has a slot; equal scores go to the lower page, and -1 fills what is left of `out`.
    """
    if device.has_kernels(scores):
        from strata.kernels.prefetch import triton

        triton.forecast_pages(scores, own, table, out, tail=tail)
    else:
        ref.forecast_pages(scores, own, table, out, tail=tail)


def forecast_experts(
    x: torch.Tensor, router: Linear, ids: torch.Tensor, weights: torch.Tensor
) -> None:
    """Write into `ids` [R, k] which experts `router` [E, H] would choose for rows `x` [R, H].

    Best first; `weights` [R, k] is scratch.
    """
    if device.has_kernels(x):
        from strata.kernels.prefetch import triton

        triton.forecast_experts(x, router.weight, ids, weights)
    else:
        ref.forecast_experts(x, router, ids)


def reserve(
    state: ResolveState,
    wanted: torch.Tensor,
    out: Pending,
    *,
    base: int = 0,
    own: torch.Tensor | None = None,
    tail: int = 0,
) -> None:
    """Take slots for the first N pages of `wanted` [L, W], plus `base`, that have none.

    Repeats count once, -1 is padding. Free slots come first, then victims of the policy, but none
    that the last resolve of the layer selected, and with `own` [1] none of page `own` - `tail` + 1
    or later. A victim's table entry goes, and its slot has no owner until `publish`. What is left
    without a slot is left out. First counts what the reservation before this one brought that a
    resolve has read since. Neither `own` nor anything else is read by the host on a GPU.
    """
    fits = state.victims == "clock" or state.owner.shape[1] <= MAX_LRFU_SLOTS
    assert fits, "no round is captured over so many slots"
    if device.has_kernels(state.table):
        from strata.kernels.prefetch import triton

        triton.reserve(state, wanted, out, base=base, own=own, tail=tail)
    else:
        ref.reserve(state, wanted, out, base=base, own=own, tail=tail)


def fetch(host: torch.Tensor, pool: torch.Tensor, pending: Pending) -> None:
    """Copy what is `pending` from `host` [L * P, ...] into its slots of `pool` [L * S, ...].

    The first axis is pages of all layers, one behind another; a GPU reads pinned memory.
    """
    if device.has_kernels(pool):
        from strata.kernels.prefetch import triton

        triton.fetch(host, pool, pending)
    else:
        ref.fetch(host, pool, pending)


def publish(state: ResolveState, pending: Pending) -> None:
    """Name what is `pending` in the tables; nothing has read it yet, and no victim policy knows it.

    `pending` keeps its lists, from which the next `reserve` counts.
    """
    if device.has_kernels(state.table):
        from strata.kernels.prefetch import triton

        triton.publish(state, pending)
    else:
        ref.publish(state, pending)
