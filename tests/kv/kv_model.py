"""A model of the K/V cache that keeps every cell in a plain tensor and selects in Python.

Keys and queries are small integers, so that bounds are exact, ties are frequent and the order of
a sum never matters.
"""

from __future__ import annotations

import torch

from strata.arena import Arena
from strata.config import Victims
from strata.kv.cache import KvCache
from strata.kv.geometry import KvGeometry, pages_of

LAYERS, KV_HEADS, GROUP, DIM = 2, 2, 2, 4


def make_cache(
    *, page_cells: int, pages: int, slots: int, select_pages: int, victims: Victims
) -> KvCache:
    geometry = KvGeometry(
        layers=LAYERS,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        page_cells=page_cells,
        pages=pages,
        slots=slots,
        select_pages=select_pages,
        dtype=torch.float32,
    )
    return KvCache(geometry, victims, Arena(1 << 18, torch.device("cpu")))


def fewest_slots(cache_tail: int, select_pages: int, pages: int) -> int:
    return min(cache_tail + select_pages, pages)


class Shadow:
    """Every committed cell [n, L, 2, K, D], and what a row must read."""

    def __init__(self, geometry: KvGeometry) -> None:
        self.g = geometry
        self.cells = torch.zeros(0, LAYERS, 2, KV_HEADS, DIM)

    def __len__(self) -> int:
        return len(self.cells)

    def selected(self, layer: int, q: torch.Tensor, position: int) -> list[int]:
        """Return the pages that a row with queries `q` [Q, D] at `position` reads."""
        g = self.g
        own = position // g.page_cells
        if g.select_pages == 0 or own < g.select_pages:
            return list(range(own + 1))
        scored = []
        for page in range(1, own - g.tail + 1):
            keys = self.cells[page * g.page_cells : (page + 1) * g.page_cells, layer, 0]
            assert len(keys) == g.page_cells, "an older page is not wholly committed"
            scored.append((-self.bound(q, keys), page))
        older = [page for _, page in sorted(scored)[: g.select_pages - 1 - g.tail]]
        return sorted([0, *older, *range(own - g.tail + 1, own + 1)])

    @staticmethod
    def bound(q: torch.Tensor, keys: torch.Tensor) -> float:
        """Return the largest head's sum over dimensions of max(q max, q min)."""
        best = -float("inf")
        for head, row in enumerate(q):
            mine = keys[:, head // GROUP]
            high, low = mine.amax(0), mine.amin(0)
            best = max(best, float(torch.maximum(row * high, row * low).sum()))
        return best

    def attention(
        self, layer: int, q: torch.Tensor, new: torch.Tensor, row: int, pages: list[int]
    ) -> torch.Tensor:
        """Return the attention [Q * D] of window row `row` over `pages`, in float64."""
        position = len(self) + row
        cells = torch.cat([self.cells[:, layer], new[: row + 1]]).double()
        read = [
            cell
            for page in pages
            for cell in range(page * self.g.page_cells, (page + 1) * self.g.page_cells)
            if cell <= position
        ]
        out = []
        for head, query in enumerate(q.double()):
            keys, values = cells[read, 0, head // GROUP], cells[read, 1, head // GROUP]
            weights = (keys @ query / DIM**0.5).softmax(-1)
            out.append(weights @ values)
        return torch.cat(out)


def small_integers(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randint(-2, 3, shape, generator=generator).float()


def check_contents(cache: KvCache, shadow: Shadow) -> None:
    """Assert that host store, resident slots and shadow agree on every committed cell."""
    g, transfer = cache.geometry, cache.transfer
    assert cache.committed == len(shadow)
    for layer in range(LAYERS):
        keys, values = transfer.past_segment(layer, 0, len(shadow))
        host = torch.stack([keys, values]).permute(2, 0, 1, 3)  # [n, 2, K, D]
        assert torch.equal(host, shadow.cells[:, layer])
        pool = transfer.pool[layer].view(g.slots, 2, KV_HEADS, g.page_cells, DIM)
        for page in range(pages_of(len(shadow), g.page_cells)):
            slot = int(cache.residency.table[layer, page])
            if slot >= 0:
                mine = shadow.cells[page * g.page_cells : (page + 1) * g.page_cells, layer]
                held = pool[slot].permute(2, 0, 1, 3)[: len(mine)]
                assert torch.equal(held, mine), f"layer {layer}, page {page}, slot {slot}"
