"""Run a prompt through the kernels, a chunk at a time; the host never waits within one.

A chunk's K/V is written as whole pages: into the ring where it holds the whole context, else into
a buffer. From there it goes to the host store beside the compute, and earlier cells come back
from it a segment at a time, two buffers in turn. Weights of experts that live on the host come
the same way, a layer at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from strata.arena import Arena
from strata.draft import Drafter, MtpDrafter
from strata.experts.cache import ExpertCache, PooledExperts
from strata.kernels.attention import attend_prompt
from strata.kernels.grouped import add_experts, norm_and_route, sort_pairs
from strata.kernels.project import norm_rows, project_heads, write_product, write_turns
from strata.kernels.select import bound_pages
from strata.kv.cache import SEED_ROWS, KvCache
from strata.kv.geometry import pages_of
from strata.lm.model import LanguageModel
from strata.prompt.lanes import Compute, Lane, Mark
from strata.prompt.plan import PromptPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Views of the rows that are attended at a time."""

    begin: int
    """The first row's number in the chunk."""
    x: torch.Tensor  # [n, H]
    turns: torch.Tensor  # [n, 2, D / 2]
    q: torch.Tensor  # [n, Q, D]
    flat_q: torch.Tensor  # [n, Q * D]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTile:
    """Views of the rows that experts work on at a time, and of their scratch."""

    x: torch.Tensor  # [n, H]
    normed: torch.Tensor  # [n, H]
    ids: torch.Tensor  # [n, k]
    weights: torch.Tensor  # [n, k]


class PromptRunner:
    """The prompt path of one session; its tensors borrow the room of ring and expert slots."""

    def __init__(
        self,
        model: LanguageModel,
        kv: KvCache,
        experts: ExpertCache,
        plan: PromptPlan,
        arena: Arena,
    ) -> None:
        self._model, self._kv, self._experts = model, kv, experts
        self._plan = plan
        self._room = arena.lend("prompt workspace", plan.size_bytes, plan.places())
        self._compute = Compute(model.device)
        layers = kv.geometry.layers
        # A mark is waited for until its layer comes round again; two segments are on their way.
        self._store = Lane(model.device, marks=4 * layers)
        self._load = Lane(model.device, marks=4)
        self._fetch = Lane(model.device, marks=4)
        g = kv.geometry
        page = (g.layers, -1, g.planes, g.page_cells, g.head_dim)
        self._pools = kv.transfer.pool.view(page).unbind(0)
        self._hosts = kv.transfer.host.view(page).unbind(0)
        self._bounds = kv.bounds.unbind(0) if kv.bounds is not None else None
        each = model.config.experts
        self._blobs = [experts.blobs(layer * each, each) for layer in range(g.layers)]
        self._tiles_of: dict[int, tuple[list[Tile], list[ExpertTile]]] = {}
        # All of a prompt's tokens, so that none is overwritten while it is on its way.
        pinned = model.device.type == "cuda"
        self._known = torch.zeros(g.pages * g.page_cells, dtype=torch.int64, pin_memory=pinned)
        self._stored: list[Mark] = [None] * g.layers  # what of each layer has reached the host
        self._stored_before: Mark = None
        self._loads = 0
        self._segment_free: list[Mark] = [None, None]
        self._experts_free: Mark = None
        self._experts_ready: Mark = None

    def run(
        self, ids: list[int], drafter: Drafter, on_progress: Callable[[int], None] | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Commit the cells of prompt `ids`; return the last rows' queries and the last hidden.

        They are [L, r, Q, D] and [1, H].
        """
        model, kv, rows = self._model, self._kv, self._plan.rows
        self._compute.begin()
        # The room was cleared by what computes, and copies must come after.
        self._experts_free = self._compute.mark()
        self._segment_free = [self._experts_free] * 2
        x = self._room["x"]
        for start in range(0, len(ids), rows):
            end = min(start + rows, len(ids))
            # One token more, because a drafter's cell is of the next token.
            # An array is made ten times as fast as a tensor, and the device waits for the first.
            known = torch.frombuffer(array("q", ids[start : end + 1]), dtype=torch.int64)
            tokens = self._room["tokens"][: len(known)]
            tokens.copy_(self._known[start : start + len(known)].copy_(known), non_blocking=True)
            write_turns(model.rotary.inverse, start, self._room["turns"])
            x = self._room["x"][: end - start]
            torch.index_select(model.weights.embedding, 0, tokens[: end - start], out=x)
            for layer in range(model.config.layers):
                self._run_layer(layer, end - start, start, len(ids))
            kv.commit_chunk(end - start)
            if isinstance(drafter, MtpDrafter):
                self._tell(drafter, tokens[1:], x, start + 1)
            if on_progress is not None:
                on_progress(end - start)
        for mark in self._stored:
            self._compute.wait(mark)
        return self._room["queries"][:, : min(SEED_ROWS, len(ids))].clone(), self._final(x[-1:])

    def restore(self, cells: torch.Tensor) -> None:
        """Commit parked `cells` [L, n, 2, K, D] on the CPU instead of running a prompt."""
        kv, g, room = self._kv, self._kv.geometry, self._room
        kv.restore_cells(cells)
        count, step = kv.committed, self._plan.rows
        for layer in range(g.layers):
            for start in range(0, count, step) if self._reads_keys else ():
                end = min(start + step, count)
                first, last = start // g.page_cells, pages_of(end, g.page_cells)
                at = self._pools[layer][first:] if self._plan.shape.resident else room["own"]
                pages = at[: last - first]
                pages.copy_(self._hosts[layer][first:last], non_blocking=True)
                if kv.bounds is not None:
                    bound_pages(kv.bounds[layer], pages, first_page=first, cells=range(start, end))

    @property
    def _reads_keys(self) -> bool:
        """Return whether cells that come from the host are wanted on the device at once."""
        return self._plan.shape.resident or self._kv.bounds is not None

    def give_back(self) -> bool:
        """Leave the borrowed room as that of a session that read nothing.

        Return whether the ring holds the prompt already, every page in the slot of its number.
        """
        # What a prompt left there may read as NaN, which no mask silences.
        if not self._plan.shape.resident:
            self._kv.transfer.pool.zero_()
        if isinstance(self._experts, PooledExperts):
            self._experts.pool.zero_()
        return self._plan.shape.resident

    def _tell(
        self, drafter: MtpDrafter, tokens: torch.Tensor, hidden: torch.Tensor, first: int
    ) -> None:
        """Write the drafter's cells from cell `first` on: one for each of `tokens` [n].

        Cell i pairs token i with the main model's state of cell i - 1, here row 0 of `hidden`.
        """
        model, room, tile = self._model, self._room, self._plan.tile
        c, w, ring = model.config, model.weights.mtp, drafter.ring
        assert w is not None
        for begin in range(0, len(tokens), tile):
            of = tokens[begin : begin + tile]
            final, wide, mixed, cells = (
                room[name][: len(of)] for name in ("final", "wide", "mixed", "drafted")
            )
            cell = first + begin
            norm_rows(hidden[begin : begin + len(of)], model.weights.norm, c.norm_eps, out=final)
            embedding, left, right = model.weights.embedding, *wide.chunk(2, 1)
            norm_rows(embedding, w.norm_embedding, c.norm_eps, out=left, index=of)
            norm_rows(final, w.norm_hidden, c.norm_eps, out=right)
            write_product(wide, w.fc.weight, mixed, add=False)
            project_heads(
                mixed,
                w.attention.norm,
                w.attention.qkv.weight,
                w.attention.qk_norm,
                room["turns"][begin + 1 :],
                c.norm_eps,
                q=room["q"],
                pages=cells,
                heads=range(c.heads, c.heads + 2 * c.kv_heads),
                offset=0,
            )
            cells = cells.view(len(of), *ring.cells.shape[1:])
            ring.place(cell, cells)
            host = ring.host[cell : cell + len(of)]
            self._compute.wait(self._store.copy(host, cells, self._compute.mark()))
        drafter.advance(len(tokens))

    def _final(self, x: torch.Tensor) -> torch.Tensor:
        weights, eps = self._model.weights, self._model.config.norm_eps
        return norm_rows(x, weights.norm, eps, out=torch.empty_like(x))

    def _tiles(self, rows: int) -> tuple[list[Tile], list[ExpertTile]]:
        """Return the tiles of a chunk of `rows` rows; views cost the host as much as launches."""
        if rows not in self._tiles_of:
            room, step, part = self._room, self._plan.tile, self._plan.expert_tile
            attended = [
                Tile(
                    begin=begin,
                    x=room["x"][begin:rows][:step],
                    turns=room["turns"][begin:rows][:step],
                    q=room["q"][: rows - begin],
                    flat_q=room["q"][: rows - begin].flatten(1),
                )
                for begin in range(0, rows, step)
            ]
            routed = [
                ExpertTile(
                    x=room["x"][begin:rows][:part],
                    normed=room["normed"][: rows - begin],
                    ids=room["ids"][: rows - begin],
                    weights=room["weights"][: rows - begin],
                )
                for begin in range(0, rows, part)
            ]
            self._tiles_of[rows] = attended, routed
        return self._tiles_of[rows]

    def _run_layer(self, layer: int, rows: int, start: int, prompt: int) -> None:
        """Replace the chunk's `rows` rows from cell `start` on by the layer's output."""
        c, (tiles, routed) = self._model.config, self._tiles(rows)
        if not self._plan.way.late:
            self._bring_experts(layer)
        pages, first_page = self._own_pages(layer, start, start + rows)
        offset = start - first_page * self._kv.geometry.page_cells
        keys = range(0 if len(tiles) == 1 else c.heads, c.heads + 2 * c.kv_heads)
        self._project(layer, self._room["x"][:rows], self._room["turns"], keys, pages, offset)
        self._keep(layer, pages, first_page, range(start, start + rows))
        for tile in tiles:
            if len(tiles) > 1:
                heads = range(c.heads)
                self._project(layer, tile.x, tile.turns, heads, pages, offset + tile.begin)
            self._note_queries(layer, start + tile.begin, len(tile.x), prompt)
            self._attend(layer, tile, start, pages, first_page)
        if self._plan.way.late:
            self._experts_free = self._compute.mark()
            self._bring_experts(layer)
        for part in routed:
            self._add_experts(layer, part)
        self._experts_free = self._compute.mark()

    def _own_pages(self, layer: int, start: int, end: int) -> tuple[torch.Tensor, int]:
        """Return pages that take the chunk's cells, and the number of the first."""
        g = self._kv.geometry
        if self._plan.shape.resident:
            return self._pools[layer], 0
        first, last = start // g.page_cells, pages_of(end, g.page_cells)
        pages = self._room["own"][: last - first]
        self._compute.wait(self._stored[layer - 1])  # whose cells may still leave the buffer
        if start % g.page_cells:
            self._compute.wait(self._stored[layer])
            pages[0].copy_(self._hosts[layer][first], non_blocking=True)
        if end % g.page_cells:
            pages[-1, :, end % g.page_cells :] = 0
        return pages, first

    def _project(
        self,
        layer: int,
        x: torch.Tensor,
        turns: torch.Tensor,
        heads: range,
        pages: torch.Tensor,
        offset: int,
    ) -> None:
        """Project rows `x`, the first one's cell at `offset` of `pages`."""
        w = self._model.weights.layers[layer]
        project_heads(
            x,
            w.norm,
            w.qkv.weight,
            w.qk_norm,
            turns,
            self._model.config.norm_eps,
            q=self._room["q"],
            pages=pages,
            heads=heads,
            offset=offset,
        )

    def _keep(self, layer: int, pages: torch.Tensor, first_page: int, cells: range) -> None:
        """Send the chunk's pages to the host store and widen the bounds by its keys."""
        g, bounds = self._kv.geometry, self._bounds
        first, last = cells.start // g.page_cells, pages_of(cells.stop, g.page_cells)
        new = pages[first - first_page : last - first_page]
        self._stored_before = self._stored[layer]
        host = self._hosts[layer][first:last]
        self._stored[layer] = self._store.copy(host, new, self._compute.mark())
        if bounds is not None:
            bound_pages(bounds[layer], new, first_page=first, cells=cells)

    def _note_queries(self, layer: int, position: int, rows: int, prompt: int) -> None:
        """Keep the queries of the prompt's last rows, which attention overwrites."""
        kept = max(0, prompt - SEED_ROWS)
        first, end = max(position, kept), position + rows
        if first < end:
            queries = self._room["q"][first - position : rows]
            self._room["queries"][layer, first - kept : end - kept] = queries

    def _attend(
        self, layer: int, tile: Tile, start: int, pages: torch.Tensor, first_page: int
    ) -> None:
        """Add the attention of a tile's rows; the chunk's cells from `start` on are in `pages`."""
        q, position = tile.q, start + tile.begin
        end = position + len(q)
        if self._plan.shape.resident:
            self._read(q, position, pages, 0, range(end), last=True)
        else:
            for past, first_cell, cells, buffer in self._past(layer, start):
                self._read(q, position, past, first_cell, cells, last=False)
                self._segment_free[buffer] = self._compute.mark()
            first_cell = first_page * self._kv.geometry.page_cells
            self._read(q, position, pages, first_cell, range(start, end), last=True)
        out = self._model.weights.layers[layer].out.weight
        write_product(tile.flat_q, out, tile.x, add=True)

    def _read(
        self,
        q: torch.Tensor,
        position: int,
        pages: torch.Tensor,
        first_cell: int,
        cells: range,
        *,
        last: bool,
    ) -> None:
        sums = self._room.get("sums", q)
        attend_prompt(
            q,
            pages,
            first_position=position,
            first_cell=first_cell,
            cells=cells,
            sums=sums,
            stats=self._room.get("stats", sums),
            last=last,
            out=q,
        )

    def _past(self, layer: int, end: int) -> Iterator[tuple[torch.Tensor, int, range, int]]:
        """Yield earlier cells of `layer`: pages, the first cell there, the cells, the buffer."""
        page_cells, step = self._kv.geometry.page_cells, self._plan.segment
        for start in range(0, end, step):
            stop = min(start + step, end)
            first, last = start // page_cells, pages_of(stop, page_cells)
            buffer = self._loads % 2
            self._loads += 1
            pages = self._room[f"segment {buffer}"][: last - first]
            source = self._hosts[layer][first:last]
            free, stored = self._segment_free[buffer], self._stored_before
            self._compute.wait(self._load.copy(pages, source, free, stored))
            yield pages, first * page_cells, range(start, stop), buffer

    def _bring_experts(self, layer: int) -> None:
        """Send the layer's experts on their way to the device, where it does not have them."""
        if self._plan.shape.experts_on_host:
            room, blobs = self._room["experts"], self._blobs[layer]
            self._experts_ready = self._fetch.copy(room, blobs, self._experts_free)

    def _add_experts(self, layer: int, tile: ExpertTile) -> None:
        experts = self._room["experts"] if self._plan.shape.experts_on_host else self._blobs[layer]
        room, model, weights = self._room, self._model, self._model.weights
        norm_and_route(
            tile.x,
            weights.layers[layer].post_norm,
            weights.routers[layer].weight,
            model.config.norm_eps,
            normalise=model.config.normalise_router,
            normed=tile.normed,
            ids=tile.ids,
            weights=tile.weights,
        )
        order, starts = room["order"], room["starts"]
        sort_pairs(tile.ids, order=order, starts=starts)
        self._compute.wait(self._experts_ready)
        add_experts(
            tile.normed,
            experts,
            tile.weights,
            order=order,
            starts=starts,
            inner=room["inner"],
            parts=room["parts"],
            x=tile.x,
        )
