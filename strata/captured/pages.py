"""How a captured window reads K/V: every page, or each row's selection through one resolve a layer.

Shapes: L layers, R rows, Q query heads, K K/V heads, D head dimension, M pages a row reads.
"""

from __future__ import annotations

from typing import Protocol

import torch

from strata.captured.prefetch import PagesAhead
from strata.config import Victims
from strata.kernels.accept import Board
from strata.kernels.gather import gather_pages
from strata.kernels.newborn import bear_pages
from strata.kernels.paged_attention import Splits, split_attention, supports
from strata.kernels.qkv import CellStore
from strata.kernels.resolve import MAX_LRFU_SLOTS, resolve
from strata.kernels.resolve.state import FILLED
from strata.kernels.select import MAX_FUSED_PAGES, select_pages, widen_bounds
from strata.kv.cache import KvCache
from strata.kv.counters import Counters
from strata.kv.geometry import KvGeometry
from strata.round_buffers import Buffers, admitted, resolve_state


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
    """K/V of a session as captured phases see it; `bear` and `after` run on the host."""

    def arm(self) -> None:
        """Start from the ring as it was seeded."""

    def bear(self, board: Board, rows: int, under_way: int) -> None:
        """Give the next window's pages their slots.

        With `under_way` rows in a window ahead of it the device knows which pages those are, and
        the host is told by `born` once it knows as well.
        """

    def born(self, rows: int) -> None:
        """Take note of the pages that the next window began."""

    def store(self, layer: int) -> CellStore:
        """Return where the cells of `layer` go."""

    def attend(self, layer: int, q: torch.Tensor, board: Board, *, every_page: bool) -> Splits:
        """Return the attention of `q` [R, Q, D], whose cells are in the store, in splits."""

    def keep(self, cells: torch.Tensor, board: Board) -> None:
        """Take note of the accepted ones of a window's `cells` [L, R, 2, K, D]."""

    def after(self, rows: int, committed: int, *, every_page: bool) -> None:
        """Count a window of `rows` rows of which `committed` were kept."""

    def join(self) -> None:
        """Wait in the round, at its end, for what is fetched beside it."""

    def sync(self) -> None:
        """Bring what the host knows of residency up to date."""

    def counters(self) -> Counters:
        """Return the counts of all layers so far."""

    def state(self) -> list[torch.Tensor]:
        """Return what a warm-up run must not have changed."""


class DensePages:
    """Read every page; newborn pages take their slots on the host, once every few rounds."""

    def __init__(self, kv: KvCache, buffers: Buffers) -> None:
        self.kv = kv
        g = kv.geometry
        self._sums, self._stats = buffers["main.sums"], buffers["main.stats"]
        self._state = resolve_state(buffers, "pages", kv.residency.table, kv.residency.owner)
        self._stores = [
            CellStore(
                pool=kv.transfer.pool[layer],
                host=kv.transfer.host[layer],
                table=kv.residency.table[layer],
            )
            for layer in range(g.layers)
        ]

    def arm(self) -> None:
        """Take over the tables as they were seeded; what was read before is forgotten."""
        self._state.start(self.kv.residency.filled)

    def bear(self, board: Board, rows: int, under_way: int) -> None:
        """Bear the window's pages: all that are to come at once where each has its slot."""
        if self.kv.geometry.holds_all:
            self.kv.bear_until(self.kv.committed + rows)
        else:
            self._bear(board, rows, under_way)

    def born(self, rows: int) -> None:
        """Tell the cache, unless it knows."""
        if self.kv.begins_page(rows):
            self.kv.note_born(rows)

    def store(self, layer: int) -> CellStore:
        """Return where the cells of `layer` go."""
        return self._stores[layer]

    def attend(self, layer: int, q: torch.Tensor, board: Board, *, every_page: bool) -> Splits:
        """Read every page where it lies."""
        return self._split(layer, q, board, None)

    def keep(self, cells: torch.Tensor, board: Board) -> None:
        """Have no bounds to widen."""

    def after(self, rows: int, committed: int, *, every_page: bool) -> None:
        """Count every page once a layer."""
        self.kv.advance(rows, committed)

    def join(self) -> None:
        """Have nothing on its way: no page is replaced."""

    def sync(self) -> None:
        """Read how many slots are filled."""
        if not self.kv.geometry.holds_all:
            self.kv.residency.filled = self._state.scalars[:, FILLED].tolist()

    def counters(self) -> Counters:
        """Return the cache's own counts."""
        return self.kv.counters.total()

    def state(self) -> list[torch.Tensor]:
        """Return nothing: tables change between phases only."""
        return []

    def _bear(self, board: Board, rows: int, under_way: int) -> None:
        """Give newborn pages slots in every layer by one launch, where there may be any."""
        g = self.kv.geometry
        if not self.kv.begins_page(rows, under_way):
            return
        bear_pages(
            self._state,
            board.positions[:1],
            rows=rows,
            page_cells=g.page_cells,
            tail=g.tail,
            replace=g.select_pages > 0,
        )
        if not under_way:
            self.born(rows)

    def _grouped(self, q: torch.Tensor) -> torch.Tensor:
        g = self.kv.geometry
        return q.view(len(q), g.kv_heads, -1, g.head_dim)

    def _split(
        self, layer: int, q: torch.Tensor, board: Board, pages: torch.Tensor | None
    ) -> Splits:
        store, rows = self._stores[layer], len(q)
        assert store.host is not None
        assert store.table is not None
        sums = self._sums[: rows * q.shape[1]]
        stats = self._stats[: 2 * sums.shape[0] * sums.shape[1]].view(2, *sums.shape[:2])
        at = board.positions[:rows]
        return split_attention(
            self._grouped(q), store.pool, store.host, store.table, at, pages, (sums, stats)
        )


class SelectedPages(DensePages):
    """Select pages per row and resolve them in the phase; decisions stay in device memory.

    While the depth is less than a selection every page is read and resident, and nothing needs
    resolving; `KvCache.reads_every` tells the two apart.
    """

    def __init__(self, kv: KvCache, buffers: Buffers) -> None:
        super().__init__(kv, buffers)
        self._admitted = admitted(buffers, "pages.in")
        self._first = buffers["pages.first"].copy_(torch.arange(kv.geometry.select_pages))
        self._scores, self._selected = buffers["pages.scores"], buffers["pages.selected"]
        self._ahead: PagesAhead | None = None
        if "pages.next.slots" in buffers:
            host, pool = kv.transfer.host, kv.transfer.pool
            self._ahead = PagesAhead(kv.geometry, self._state, host, pool, buffers)

    def arm(self) -> None:
        """Take over the tables as they were seeded, in which nothing was fetched ahead."""
        super().arm()
        if self._ahead is not None:
            self._ahead.clear()

    def bear(self, board: Board, rows: int, under_way: int) -> None:
        """Give newborn pages slots; the victim policy says whose."""
        self._bear(board, rows, under_way)

    def attend(self, layer: int, q: torch.Tensor, board: Board, *, every_page: bool) -> Splits:
        """Select, resolve, bring misses in, and read each row's pages."""
        g, state, rows = self.kv.geometry, self._state, len(q)
        bounds = self.kv.bounds
        assert bounds is not None
        if every_page:
            return self._split(layer, q, board, self._first.expand(rows, -1))
        own, ahead = board.own_pages[:rows], self._ahead
        pages = select_pages(
            self._grouped(q),
            bounds[layer],
            own,
            count=g.select_pages,
            tail=g.tail,
            out=self._selected[:rows],
            scores=self._scores[:rows] if ahead is None else ahead.scores(layer, rows),
        )
        admitted = self._admitted
        # From the first row's own page on nothing may be a victim.
        resolve(state, pages, admitted, layer=layer, keep_from=own[:1], distinct=rows == 1)
        store, count = self._stores[layer], admitted.count[0, :1]
        assert store.host is not None
        gather_pages(
            store.host, store.pool, admitted.pages[0], admitted.slots[0], count, planes=g.planes
        )
        if ahead is not None and layer == g.layers - 1:
            ahead.run(pages)
        return self._split(layer, q, board, pages)

    def join(self) -> None:
        """Wait for pages that are fetched for the next round."""
        if self._ahead is not None:
            self._ahead.join()

    def keep(self, cells: torch.Tensor, board: Board) -> None:
        """Widen the bounds of the accepted rows' pages, in every layer by one launch."""
        assert self.kv.bounds is not None
        page_cells = self.kv.geometry.page_cells
        widen_bounds(self.kv.bounds, cells, board.written, board.accepted, page_cells=page_cells)

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
        ahead = (0, 0) if self._ahead is None else self._ahead.counts()
        return self.kv.counters.total() + Counters(lookups, hits, misses, moved, overflows, *ahead)

    def state(self) -> list[torch.Tensor]:
        """Return the counters; a warm-up run leaves pages resident, which changes no result."""
        return [self._state.counters, *([] if self._ahead is None else self._ahead.state())]
