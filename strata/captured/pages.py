"""How a captured window reads K/V: every page, or each row's selection through one resolve a layer.

Shapes: L layers, R rows, Q query heads, K K/V heads, D head dimension, M pages a row reads.
"""

from __future__ import annotations

from typing import Protocol

import torch

from strata.config import MAX_ROWS, Victims
from strata.kernels.append import append_cells
from strata.kernels.gather import gather_pages
from strata.kernels.paged_attention import attend_dense, attend_selected, supports
from strata.kernels.resolve import MAX_LRFU_SLOTS, Admitted, ResolveState, resolve
from strata.kernels.resolve.state import FILLED
from strata.kernels.select import MAX_FUSED_PAGES, select_pages, update_bounds
from strata.kv.cache import KvCache
from strata.kv.counters import Counters
from strata.kv.geometry import KvGeometry


def capture_obstacle(geometry: KvGeometry, victims: Victims, group: int) -> str:
    """Return why no graph can hold a window of such pages, empty where one can.

    What no kernel serves falls to a reference, and that waits for the host. `group` are the query
    heads of a K/V head.
    """
    g = geometry
    if not supports(head_dim=g.head_dim, dtype=g.dtype, group=group):
        return f"no kernel attends {group} heads of {g.head_dim} a K/V head in {g.dtype}"
    if g.select_pages and g.pages > MAX_FUSED_PAGES:
        return f"selection is out of {g.pages} pages, more than {MAX_FUSED_PAGES}"
    if g.select_pages and victims == "lrfu" and g.slots > MAX_LRFU_SLOTS:
        return f"lrfu has {g.slots} slots to choose from, more than {MAX_LRFU_SLOTS}"
    return ""


class Pages(Protocol):
    """K/V of a session as captured phases see it; `before` and `after` run on the host."""

    def arm(self) -> None:
        """Start from the ring as it was seeded."""

    def before(self, rows: int) -> bool:
        """Give the next window's pages their slots; return whether its rows read every page."""

    def open(self, positions: torch.Tensor, *, every_page: bool) -> None:
        """Find where the cells of rows `positions` [R] go."""

    def attend(self, layer: int, q: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        """Append `cells` [R, 2, K, D] and return attention of `q` [R, Q, D] as [R, Q * D]."""

    def accept(self, accepted: torch.Tensor) -> None:
        """Keep the first `accepted` + 1 rows (a number on the device)."""

    def after(self, rows: int, committed: int, *, every_page: bool) -> None:
        """Count a window of `rows` rows of which `committed` were kept."""

    def sync(self) -> None:
        """Bring what the host knows of residency up to date."""

    def counters(self) -> Counters:
        """Return the counts of all layers so far."""

    def state(self) -> list[torch.Tensor]:
        """Return what a warm-up run must not have changed."""


class DensePages:
    """Read every page; newborn pages take their slots on the host, once every few rounds."""

    def __init__(self, kv: KvCache) -> None:
        self.kv = kv

    def arm(self) -> None:
        """Have nothing to start."""

    def before(self, rows: int) -> bool:
        """Bear the window's pages."""
        self.kv.bear_until(self.kv.committed + rows)
        return True

    def open(self, positions: torch.Tensor, *, every_page: bool) -> None:
        """Find where the cells of rows `positions` [R] go."""
        kv = self.kv
        g, table = kv.geometry, kv.residency.table
        self._positions = positions
        self._own_page = positions // g.page_cells
        offsets = positions % g.page_cells
        slots = table.index_select(1, self._own_page).long()
        self._host_rows = kv.transfer.cell_rows(self._own_page, offsets)
        self._pool_rows = kv.transfer.cell_rows(slots, offsets)

    def attend(self, layer: int, q: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        """Append, then read every page where it lies."""
        pool, host = self._append(layer, cells)
        table = self.kv.residency.table[layer]
        return attend_dense(self._grouped(q), pool, host, table, self._positions)

    def accept(self, accepted: torch.Tensor) -> None:
        """Have no bounds to widen."""

    def after(self, rows: int, committed: int, *, every_page: bool) -> None:
        """Count every page once a layer."""
        self.kv.advance(rows, committed)

    def sync(self) -> None:
        """Have nothing to bring: the host decides."""

    def counters(self) -> Counters:
        """Return the cache's own counts."""
        return self.kv.counters.total()

    def state(self) -> list[torch.Tensor]:
        """Return nothing: tables change on the host only."""
        return []

    def _append(self, layer: int, cells: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pool, host = self.kv.transfer.pool[layer], self.kv.transfer.host[layer]
        append_cells(cells, host, self._host_rows, pool, self._pool_rows[layer])
        return pool, host

    def _grouped(self, q: torch.Tensor) -> torch.Tensor:
        g = self.kv.geometry
        return q.view(len(q), g.kv_heads, -1, g.head_dim)


class SelectedPages(DensePages):
    """Select pages per row and resolve them in the phase; decisions stay in device memory.

    While the depth is less than a selection every page is read and resident, and nothing needs
    resolving; `before` tells the two apart.
    """

    def __init__(self, kv: KvCache) -> None:
        super().__init__(kv)
        g, table = kv.geometry, kv.residency.table
        self._state = ResolveState.over(table, kv.residency.owner, kv.victims)
        self._admitted = Admitted.empty(1, min(MAX_ROWS * g.select_pages, g.pages), table.device)
        self._born = Admitted.empty(g.layers, 1, table.device)

    def arm(self) -> None:
        """Take over the tables as they were seeded; what was read before is forgotten."""
        self._state.start(self.kv.residency.filled)
        self._born_pages = self.kv.born_pages

    def before(self, rows: int) -> bool:
        """Give newborn pages slots in every layer by one launch; say if every page is read."""
        g = self.kv.geometry
        last_page = (self.kv.committed + rows - 1) // g.page_cells
        assert last_page < g.pages, "window past the session's max context"
        device = self._state.table.device
        for page in range(self._born_pages, last_page + 1):
            keep = torch.full((1,), page - g.tail + 1, device=device)
            newborn = torch.full((1,), page, device=device)
            resolve(
                self._state,
                newborn,
                self._born,
                layer=None,
                keep_from=keep,
                distinct=True,
                count=False,
            )
            self.kv.reset_bounds(page)
        self._born_pages = max(self._born_pages, last_page + 1)
        return last_page < g.select_pages

    def open(self, positions: torch.Tensor, *, every_page: bool) -> None:
        """Find where cells go, and from which page on nothing may be a victim."""
        super().open(positions, every_page=every_page)
        g = self.kv.geometry
        self._every_page = every_page
        self._keep_from = self._own_page[:1]
        self._first = torch.arange(g.select_pages, device=positions.device).expand(
            len(positions), -1
        )
        self._keys: list[torch.Tensor] = []

    def attend(self, layer: int, q: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        """Append, select, resolve, bring misses in, and read each row's pages."""
        g, state = self.kv.geometry, self._state
        bounds = self.kv.bounds
        assert bounds is not None
        pool, host = self._append(layer, cells)
        self._keys.append(cells[:, 0])
        grouped = self._grouped(q)
        pages = self._first
        if not self._every_page:
            pages = select_pages(
                grouped, bounds[layer], self._own_page, count=g.select_pages, tail=g.tail
            )
            admitted = self._admitted
            resolve(
                state,
                pages,
                admitted,
                layer=layer,
                keep_from=self._keep_from,
                distinct=len(q) == 1,
            )
            count = admitted.count[0, :1]
            gather_pages(host, pool, admitted.pages[0], admitted.slots[0], count, planes=g.planes)
        return attend_selected(grouped, pool, host, state.table[layer], self._positions, pages)

    def accept(self, accepted: torch.Tensor) -> None:
        """Widen the bounds of the accepted rows' pages."""
        assert self.kv.bounds is not None
        kept = torch.arange(len(self._positions), device=accepted.device) <= accepted
        update_bounds(self.kv.bounds, self._own_page, torch.stack(self._keys), kept)

    def after(self, rows: int, committed: int, *, every_page: bool) -> None:
        """Count a window that read every page; others were counted on the device."""
        if every_page:
            self.kv.advance(rows, committed)
        else:
            self.kv.committed += committed

    def sync(self) -> None:
        """Read how many slots are filled."""
        self.kv.residency.filled = self._state.scalars[:, FILLED].tolist()

    def counters(self) -> Counters:
        """Return the cache's counts and those that the device kept."""
        lookups, hits, misses, overflows = self._state.counters.sum(0).tolist()
        moved = misses * self.kv.geometry.page_bytes
        return self.kv.counters.total() + Counters(lookups, hits, misses, moved, overflows)

    def state(self) -> list[torch.Tensor]:
        """Return the counters; a warm-up run leaves pages resident, which changes no result."""
        return [self._state.counters]
