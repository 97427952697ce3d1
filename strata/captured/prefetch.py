"""What a captured round fetches ahead, beside its compute: pages of the next, experts of the layer.

Pages: behind the last layer's resolve every layer's scores are known, so one side line serves all
layers while the last one attends, the head draws and the drafter writes; it ends with the round.
Experts: behind a layer's resolve the next layer's router is asked about the same rows; that side
line ends before the next layer's resolve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import torch

from strata.captured.branch import Branch
from strata.kernels.prefetch import (
    PREFETCHED,
    USED,
    Pending,
    fetch,
    forecast_experts,
    forecast_pages,
    publish,
    reserve,
)
from strata.kernels.resolve import ResolveState
from strata.kv.geometry import KvGeometry
from strata.lm.linear import Linear
from strata.round_buffers import Buffers, of_part


class Ahead:
    """A reservation, its side line and what both have counted."""

    def __init__(
        self, name: str, state: ResolveState, host: torch.Tensor, pool: torch.Tensor, kept: Buffers
    ) -> None:
        """Fetch pages of all layers `host` [L * P, ...] into `pool` [L * S, ...]."""
        self._state, self._host, self._pool = state, host, pool
        self._pending = Pending(**{field.name: kept[field.name] for field in fields(Pending)})
        self._pending.clear()
        self._branch = Branch(pool.device, name)

    def clear(self) -> None:
        """Forget what was fetched: slots have been given away without it."""
        self._pending.clear()

    def join(self) -> None:
        """Wait in the round for what is on its way."""
        self._branch.join()

    def counts(self) -> tuple[int, int]:
        """Return how many pages were fetched ahead, and how many of them were read in time."""
        counts = self._pending.counters.sum(0).tolist()
        return counts[PREFETCHED], counts[USED]

    def state(self) -> list[torch.Tensor]:
        """Return the counters."""
        return [self._pending.counters]

    def _run(
        self,
        forecast: Callable[[], torch.Tensor],
        *,
        base: int = 0,
        own: torch.Tensor | None = None,
        tail: int = 0,
    ) -> None:
        with self._branch.fork():
            reserve(self._state, forecast(), self._pending, base=base, own=own, tail=tail)
            fetch(self._host, self._pool, self._pending)
            publish(self._state, self._pending)


class PagesAhead(Ahead):
    """Fetch the best scored pages that have no slot."""

    def __init__(
        self,
        geometry: KvGeometry,
        state: ResolveState,
        host: torch.Tensor,
        pool: torch.Tensor,
        buffers: Buffers,
    ) -> None:
        """Take the host store [L, P * planes, C, D] and the pool as they are."""
        kept = of_part(buffers, "pages.next")
        page = (-1, geometry.planes, *pool.shape[2:])
        super().__init__("pages", state, host.view(page), pool.view(page), kept)
        self._geometry, self._scores, self._wanted = (
            geometry,
            buffers["pages.scores"],
            kept["wanted"],
        )

    def scores(self, layer: int, rows: int) -> torch.Tensor:
        """Return where the scores [R, P] of `layer` go: they leave earlier layers' last rows be.

        Each layer begins one row before the layer ahead of it, so that the last rows of all layers
        stand one behind another, the last layer's first.
        """
        return self._scores[self._geometry.layers - 1 - layer :][:rows]

    def run(self, selected: torch.Tensor) -> None:
        """Fetch for the round behind the one whose rows have `selected` [R, M] of the last layer.

        A page's score is that of the last row; the victims are older than any row's tail.
        """
        g, rows = self._geometry, len(selected)
        last, own = self._scores[rows - 1 :][: g.layers], selected[-1, -1:]

        def forecast() -> torch.Tensor:
            forecast_pages(last, own, self._state.table, self._wanted, tail=g.tail)
            return self._wanted

        self._run(forecast, own=own, tail=g.tail)


class ExpertsAhead(Ahead):
    """Fetch the experts that the next layer's router names for this layer's rows."""

    def __init__(
        self, state: ResolveState, host: torch.Tensor, pool: torch.Tensor, buffers: Buffers
    ) -> None:
        """Take experts [N, 3I, H] of all layers in host memory and their `pool` [S, 3I, H]."""
        kept = of_part(buffers, "experts.next")
        super().__init__("experts", state, host, pool, kept)
        self._ids, self._weights = kept["ids"], kept["weights"]

    def run(self, x: torch.Tensor, router: Linear, base: int) -> None:
        """Fetch experts of the layer that begins at `base`, for rows `x` [R, H] of the one before.

        `x` must stand until the join.
        """
        ids, weights = self._ids[: len(x)], self._weights[: len(x)]

        def forecast() -> torch.Tensor:
            forecast_experts(x, router, ids, weights)
            return ids.view(1, -1)

        self._run(forecast, base=base)
