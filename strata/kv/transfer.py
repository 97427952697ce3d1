"""Move K/V between the host store and the pool, and gather it for attention.

A plane is [C, D]; page p of the host store is planes p * planes .. p * planes + planes - 1, and a
slot of the pool likewise, so every move is an index into planes or into cells of planes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strata.kv.geometry import KvGeometry


@dataclass(frozen=True, slots=True)
class GatherPlan:
    """Where the planes of a list of pages lie: in the pool, or in place in the host store."""

    pool_planes: torch.Tensor  # [N]; 0 where the plane is read in place
    in_place: torch.Tensor | None  # [N'] positions in the gathered list
    host_planes: torch.Tensor | None  # [U] distinct planes of the host store
    host_order: torch.Tensor | None  # [N'], which of them stands at each position
    pages_in_place: int
    """Distinct pages: one that several rows read in place still crosses the bus once."""


class Transfer:
    """The host store [L, P * planes, C, D] and the pool [L, S * planes, C, D] of a session."""

    def __init__(self, geometry: KvGeometry, pool: torch.Tensor, host: torch.Tensor) -> None:
        self.geometry = geometry
        self.pool = pool
        self.host = host
        planes = torch.arange(geometry.planes, device=pool.device)
        self._planes = planes[:, None]  # [planes, 1]
        self._pool_cells = pool.view(geometry.layers, -1, geometry.head_dim)
        self._host_cells = host.view(geometry.layers, -1, geometry.head_dim)

    def bring_in(self, layer: int, pages: torch.Tensor, slots: torch.Tensor) -> None:
        """Copy whole `pages` [N] from the host store into `slots` [N]."""
        source = (pages[:, None] * self.geometry.planes + self._planes[:, 0]).flatten()
        target = (slots[:, None] * self.geometry.planes + self._planes[:, 0]).flatten()
        self.pool[layer].index_copy_(0, target, self._from_host(layer, source))

    def plan(self, pages: torch.Tensor, slots: torch.Tensor) -> GatherPlan:
        """Return where to find `pages` [..., N] whose slots are `slots` (negative = in place).

        The gathered order is [..., planes, N]: K of every head, then V, pages side by side, so
        that the result reads as contiguous cells of a head.
        """
        planes = self.geometry.planes
        pool_planes = (slots.clamp_min(0)[..., None, :] * planes + self._planes).flatten()
        missing = slots < 0
        if not missing.any():
            return GatherPlan(pool_planes, None, None, None, 0)
        mask = missing[..., None, :].expand(*slots.shape[:-1], planes, -1).flatten()
        in_place = mask.nonzero()[:, 0]
        wanted = (pages[..., None, :] * planes + self._planes).flatten()[in_place]
        host_planes, order = torch.unique(wanted, return_inverse=True)
        return GatherPlan(pool_planes, in_place, host_planes, order, len(host_planes) // planes)

    def gather(self, layer: int, plan: GatherPlan, *lead: int) -> torch.Tensor:
        """Return the planned planes as [*lead, 2, K, cells, D], K first."""
        g = self.geometry
        out = self.pool[layer].index_select(0, plan.pool_planes)
        if plan.in_place is not None:
            assert plan.host_planes is not None
            planes = self._from_host(layer, plan.host_planes)
            out.index_copy_(0, plan.in_place, planes[plan.host_order])
        return out.view(*lead, 2, g.kv_heads, -1, g.head_dim)

    def cell_rows(self, pages: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Return the cell rows [..., R * planes] of `offsets` [R] in pages or slots [..., R]."""
        planes = pages[..., None] * self.geometry.planes + self._planes[:, 0]
        return (planes * self.geometry.page_cells + offsets[:, None]).flatten(-2)

    def append(
        self, layer: int, cells: torch.Tensor, host_rows: torch.Tensor, pool_rows: torch.Tensor
    ) -> None:
        """Write new `cells` [R, 2, K, D] through to the host store and to their slots."""
        flat = cells.reshape(-1, self.geometry.head_dim)
        self.write_host(layer, flat, host_rows)
        self._pool_cells[layer].index_copy_(0, pool_rows, flat)

    def write_host(self, layer: int, flat: torch.Tensor, host_rows: torch.Tensor) -> None:
        """Write `flat` [R * planes, D] to `host_rows` of the host store."""
        self._host_cells[layer].index_copy_(0, self._on_host(host_rows), self._on_host(flat))

    def past_segment(self, layer: int, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values [K, end - start, D] of committed cells, from the host store."""
        g = self.geometry
        first, last = start // g.page_cells, -(-end // g.page_cells)
        planes = self.host[layer, first * g.planes : last * g.planes].to(self.pool.device)
        pages = planes.view(last - first, 2, g.kv_heads, g.page_cells, g.head_dim)
        kv = pages.permute(1, 2, 0, 3, 4).reshape(2, g.kv_heads, -1, g.head_dim)
        keys, values = kv[:, :, start - first * g.page_cells :][:, :, : end - start]
        return keys, values

    def _from_host(self, layer: int, planes: torch.Tensor) -> torch.Tensor:
        rows = self.host[layer].index_select(0, self._on_host(planes))
        return rows if rows.device == self.pool.device else rows.to(self.pool.device)

    def _on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.device == self.host.device else tensor.to(self.host.device)
