"""The K/V cache of a session: append, resolve, gather and attend, layer by layer.

The order within a window is `begin`, then `attend` once per layer, then `commit` with the
number of rows that were verified. Rows that are not committed leave their cells behind the
committed end, where the next window overwrites them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from strata.arena import Arena
from strata.config import Victims
from strata.kernels.select import count_selected, select_pages, update_bounds
from strata.kv.counters import Counters, LayerCounters
from strata.kv.geometry import KvGeometry, pages_of
from strata.kv.reader import make_stores
from strata.kv.residency import Residency
from strata.kv.victims import make_victims
from strata.kv.window import Window, make_window

SEED_ROWS = 64
"""Prompt rows whose selections seed the ring."""
NOTED_BYTES = 1 << 19
"""Scores that are held at a time when the ring is seeded: they are in no arena."""


class KvCache:
    """K/V of one session: every committed cell in the host store, a ring of pages in the pool."""

    def __init__(self, geometry: KvGeometry, victims: Victims, arena: Arena) -> None:
        g = self.geometry = geometry
        device = arena.device
        pool = arena.take("kv ring", g.pool_shape, g.dtype, lendable=not g.holds_all)
        table = arena.take("page tables", (g.layers, g.pages), torch.int32)
        owner = arena.take("page tables", (g.layers, g.slots), torch.int32)
        host = torch.zeros(g.host_shape, dtype=g.dtype, pin_memory=device.type == "cuda")
        self.transfer, self._reader = make_stores(g, pool, host, table)
        self.victims = victims
        policy = make_victims(victims, g.layers, g.slots, device)
        self.residency = Residency(policy, table, owner)
        self.bounds = (
            arena.take("key bounds", g.bounds_shape, torch.float32) if g.select_pages else None
        )
        self.counters = LayerCounters([Counters() for _ in range(g.layers)])
        self.committed = 0
        self.born_pages = 0
        self._seed_counts: torch.Tensor | None = None  # [L, P]
        self._planned_pages = 0
        self._planned_in_place: list[int] = []  # [L]
        self._window: Window | None = None
        self._window_keys: list[torch.Tensor] = []

    # -- decode ---------------------------------------------------------------------------

    def begin(self, rows: int) -> Window:
        """Open a window of `rows` rows behind the committed cells; its pages get slots."""
        last_page = self.bear_until(self.committed + rows)
        self._window = make_window(self.transfer, self.residency.table, self.committed, rows)
        self._window_keys = []
        if self._window.dense:
            self._plan_dense(last_page + 1)
        self._reader.open(self._window)
        return self._window

    def attend(self, layer: int, q: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        """Append `cells` [R, 2, K, D] and return attention of `q` [R, Q, D] as [R, Q * D]."""
        window = self._window
        assert window is not None, "attend outside a window"
        g = self.geometry
        self.transfer.append(layer, cells, window.host_rows, window.pool_rows[layer])
        grouped = q.view(window.rows, g.kv_heads, -1, g.head_dim)
        if self.bounds is not None:
            self._window_keys.append(cells[:, 0])
        if window.dense:
            self._count_dense(layer, self._planned_pages, self._planned_in_place[layer])
            return self._reader.dense(layer, grouped, window)
        pages = self._resolve_selected(layer, grouped, window)
        return self._reader.selected(layer, grouped, pages, window)

    def commit(self, rows: int) -> None:
        """Keep the first `rows` rows of the open window; key bounds widen only here."""
        window = self._window
        assert window is not None, "commit outside a window"
        assert 0 < rows <= window.rows
        if self.bounds is not None:
            keys = torch.stack(self._window_keys)[:, :rows]
            update_bounds(self.bounds, window.pages[:rows], keys)
        self.committed += rows
        self._window = None

    def bear_until(self, cells: int) -> int:
        """Give every page of the first `cells` cells its slots; return the last page."""
        g = self.geometry
        last_page = (cells - 1) // g.page_cells
        assert last_page < g.pages, "window past the session's max context"
        if self.born_pages <= last_page and g.holds_all:
            self._bear_rest()
        for page in range(self.born_pages, last_page + 1):
            self._bear(page)
        return last_page

    def begins_page(self, rows: int, under_way: int = 0) -> bool:
        """Return whether a window of `rows` rows has a page that is not born yet, or may have.

        Of a window of `under_way` rows ahead of it any number may be kept.
        """
        last_page = self._last_page(under_way + rows)
        assert last_page < self.geometry.pages, "window past the session's max context"
        return last_page >= self.born_pages

    def reads_every(self, rows: int) -> bool:
        """Return whether the rows of a window read every page: no more than a selection, or all."""
        selected = self.geometry.select_pages
        return not selected or self._last_page(rows) < selected

    def foresees(self, rows: int, under_way: int) -> bool:
        """Return whether it is known how a window of `rows` rows reads behind one under way.

        Of its `under_way` rows any number may be kept: whatever that is, the next window reads
        every page or does not. Which pages it begins need not be known, unless the host bears all
        that are to come.
        """
        g = self.geometry
        if g.select_pages:
            return self.reads_every(rows) == self.reads_every(under_way + rows)
        return not g.holds_all or self._last_page(under_way + rows) < self.born_pages

    def note_born(self, rows: int) -> None:
        """Take note that the pages of a window of `rows` rows were born on the device."""
        self.born_pages = self._last_page(rows) + 1
        self._planned_pages = 0

    def _last_page(self, rows: int) -> int:
        """Return the last page of a window of `rows` rows behind the committed cells."""
        return (self.committed + rows - 1) // self.geometry.page_cells

    def _bear_rest(self) -> None:
        """Give every page to come its slot at once: there is one for each."""
        g = self.geometry
        self.residency.admit_rest(self.born_pages)
        self.reset_bounds(self.born_pages, g.pages)
        self.born_pages = g.pages
        self._planned_pages = 0

    def advance(self, rows: int, committed: int) -> None:
        """Count a dense window of `rows` rows that was read without `attend`, and commit some.

        No table is asked: the newest pages have slots, so what lacks one is what slots lack.
        """
        pages = self._last_page(rows) + 1
        in_place = max(0, self.born_pages - self.geometry.slots)
        for layer in range(self.geometry.layers):
            self._count_dense(layer, pages, in_place)
        self.committed += committed

    def _bear(self, page: int) -> None:
        """Give a page that has no cells yet its slots and empty bounds."""
        g = self.geometry
        first_tail = page - g.tail + 1
        for layer in range(g.layers):
            self.residency.admit_new(layer, page, first_tail=first_tail, replace=g.select_pages > 0)
        self.reset_bounds(page)
        self.born_pages = page + 1
        self._planned_pages = 0

    def _plan_dense(self, pages: int) -> None:
        """Find where the first `pages` pages lie, unless nothing has moved since."""
        if self._planned_pages != pages:
            self._planned_in_place = self._reader.plan_dense(pages)
            self._planned_pages = pages

    def _count_dense(self, layer: int, pages: int, in_place: int) -> None:
        """Count `pages` pages once each; those without a slot are read in place."""
        self.counters.layers[layer].count(
            lookups=pages,
            misses=in_place,
            overflows=in_place,
            item_bytes=self.geometry.page_bytes,
        )

    def _resolve_selected(self, layer: int, q: torch.Tensor, window: Window) -> torch.Tensor:
        """Select and resolve; return each row's pages [R, M]."""
        g = self.geometry
        assert self.bounds is not None
        pages = select_pages(q, self.bounds[layer], window.pages, count=g.select_pages, tail=g.tail)
        distinct = pages[0] if window.rows == 1 else torch.unique(pages)
        before, admission = self.residency.resolve(
            layer, distinct, keep_from=window.base // g.page_cells
        )
        misses = overflows = 0
        if admission is not None:
            self.transfer.bring_in(layer, admission.pages, admission.slots)
            misses = int((before < 0).sum())
            overflows = misses - len(admission.pages)
        self.counters.layers[layer].count(
            lookups=len(distinct), misses=misses, overflows=overflows, item_bytes=g.page_bytes
        )
        return pages

    # -- prompt ---------------------------------------------------------------------------

    def write_chunk(self, layer: int, cells: torch.Tensor) -> None:
        """Write a prompt chunk's `cells` [n, 2, K, D] behind the committed cells, host only."""
        g = self.geometry
        positions = torch.arange(self.committed, self.committed + len(cells), device=cells.device)
        pages, offsets = positions // g.page_cells, positions % g.page_cells
        rows = self.transfer.cell_rows(pages, offsets)
        self.transfer.write_host(layer, cells.reshape(-1, g.head_dim), rows)
        if self.bounds is not None:
            if layer == 0:
                born = pages_of(self.committed, g.page_cells)
                end = pages_of(self.committed + len(cells), g.page_cells)
                self.reset_bounds(born, end)
            update_bounds(self.bounds[layer], pages, cells[:, 0])

    def past(self, layer: int, segment: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the committed cells of `layer`, `segment` cells at a time, from the host store."""
        for start in range(0, self.committed, segment):
            yield self.transfer.past_segment(layer, start, min(start + segment, self.committed))

    def commit_chunk(self, rows: int) -> None:
        """Keep a prompt chunk of `rows` cells; the ring must be seeded before the next window."""
        self.committed += rows

    def prompt_cells(self) -> torch.Tensor:
        """Return a copy of every committed cell [L, n, 2, K, D], on the CPU."""
        if self.transfer.pool.is_cuda:
            torch.cuda.synchronize(self.transfer.pool.device)
        g = self.geometry
        cells = torch.empty(g.layers, self.committed, 2, g.kv_heads, g.head_dim, dtype=g.dtype)
        for host, part in self._host_pieces(cells):
            part.copy_(host)
        return cells

    def restore_cells(self, cells: torch.Tensor) -> None:
        """Take over `cells` [L, n, 2, K, D] on the CPU, into the host store alone.

        Bounds are not told; the ring must be seeded before the next window.
        """
        for host, part in self._host_pieces(cells):
            host.copy_(part)
        self.committed = cells.shape[1]

    def _host_pieces(self, cells: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield pieces of the host store and of `cells` [L, n, 2, K, D] that are the same cells."""
        g = self.geometry
        planes = (2, g.kv_heads, g.page_cells, g.head_dim)
        pages = self.transfer.host.view(g.layers, -1, *planes).permute(0, 1, 4, 2, 3, 5)
        whole = cells.shape[1] // g.page_cells
        inside = whole * g.page_cells
        yield (
            pages[:, :whole],
            cells[:, :inside].view(g.layers, whole, g.page_cells, *cells.shape[2:]),
        )
        if inside < cells.shape[1]:
            yield pages[:, whole, : cells.shape[1] - inside], cells[:, inside:]

    def note_prompt_end(self, queries: torch.Tensor) -> None:
        """Remember what the last prompt rows' `queries` [L, r, Q, D] would select.

        Rows too shallow to select say nothing; a dense session has nothing to remember.
        """
        g = self.geometry
        rows = range(self.committed - queries.shape[1], self.committed)
        deep = [row for row in rows if row // g.page_cells + 1 >= g.select_pages]
        if self.bounds is None or not deep:
            return
        own = torch.tensor(deep, device=queries.device) // g.page_cells
        queries = queries[:, -len(deep) :]
        grouped = queries.view(g.layers, len(own), g.kv_heads, -1, g.head_dim)
        self._seed_counts = torch.zeros(g.layers, g.pages, dtype=torch.int32, device=own.device)
        step = max(1, NOTED_BYTES // (4 * g.pages))
        for layer, bounds in enumerate(self.bounds):
            for first in range(0, len(own), step):
                q, at = grouped[layer, first:][:step], own[first:][:step]
                pages = select_pages(q, bounds, at, count=g.select_pages, tail=g.tail)
                count_selected(pages, self._seed_counts[layer])

    def seed(self, *, placed: bool = False) -> None:
        """Fill the ring: tail pages, then the most selected by the prompt, then the newest.

        With `placed` the ring holds every page already, page p in slot p.
        """
        g, pages = self.geometry, pages_of(self.committed, self.geometry.page_cells)
        self.residency.clear()
        device = self.residency.table.device
        if pages <= g.slots:
            best = torch.arange(pages, device=device).expand(g.layers, -1)
        else:
            # A layer at a time: sorts take memory beside the arena.
            ranked = (self.seed_ranking(layer)[: g.slots] for layer in range(g.layers))
            best = torch.stack([chosen.sort().values for chosen in ranked])
        slots = self.residency.seed_all(best)
        if not placed:
            for layer, chosen in enumerate(best):
                self.transfer.bring_in(layer, chosen, slots)
        self.born_pages = pages
        self._planned_pages = 0

    def seed_ranking(self, layer: int) -> torch.Tensor:
        """Return every page of `layer`, the one that most deserves a slot first."""
        pages = pages_of(self.committed, self.geometry.page_cells)
        rank = torch.arange(pages, dtype=torch.int32, device=self.residency.table.device)
        if self._seed_counts is not None:
            rank += self._seed_counts[layer, :pages] * pages
        rank[max(0, pages - self.geometry.tail) :] += pages * (SEED_ROWS + 1)
        return rank.argsort(descending=True)

    def truncate(self, cells: int) -> None:
        """Forget every cell from `cells` on and seed the ring again."""
        assert 0 < cells <= self.committed
        g = self.geometry
        self.committed = cells
        self._window = None
        first = (cells - 1) // g.page_cells * g.page_cells
        if self.bounds is not None:
            self.reset_bounds(first // g.page_cells)
            page = torch.full((cells - first,), first // g.page_cells, device=self.bounds.device)
            for layer in range(g.layers):
                keys, _ = self.transfer.past_segment(layer, first, cells)
                update_bounds(self.bounds[layer], page, keys.transpose(0, 1))
        self.seed()

    def reset_bounds(self, page: int, end: int | None = None) -> None:
        """Give newborn pages, `page` or all before `end`, bounds that a first key replaces."""
        if self.bounds is not None:
            born = self.bounds[:, :, page : page + 1 if end is None else end]
            born[..., : self.geometry.head_dim] = -torch.inf
            born[..., self.geometry.head_dim :] = torch.inf
