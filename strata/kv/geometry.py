"""How K/V is cut into pages, and the sizes that follow.

Shapes used in this package: L layers, K K/V heads, D head dimension, C cells a page, P pages of
the session, S slots a layer, R rows of a window, M pages a row reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strata.config import tail_pages
from strata.lm.config import LMConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGeometry:
    """The shape of a session's K/V."""

    layers: int
    kv_heads: int
    head_dim: int
    page_cells: int
    pages: int
    """Pages of the session's max context."""
    slots: int
    """Slots a layer; the ring is slots * page_cells cells."""
    select_pages: int
    """Pages one row reads, 0 for dense."""
    dtype: torch.dtype

    @property
    def tail(self) -> int:
        """Return T, the pages up to its own that a row always reads."""
        return tail_pages(self.page_cells)

    @property
    def planes(self) -> int:
        """Return the [C, D] planes of a page: K and V of every head."""
        return 2 * self.kv_heads

    @property
    def page_bytes(self) -> int:
        """Return the bytes of one page of one layer."""
        return self.planes * self.page_cells * self.head_dim * self.dtype.itemsize

    @property
    def ring_cells(self) -> int:
        """Return the cells the pool holds."""
        return self.slots * self.page_cells

    @property
    def holds_all(self) -> bool:
        """Return whether there is a slot for every page."""
        return self.slots >= self.pages

    @property
    def pool_shape(self) -> tuple[int, ...]:
        """Return [L, S * planes, C, D]: a page is `planes` consecutive planes, K's first."""
        return (self.layers, self.slots * self.planes, self.page_cells, self.head_dim)

    @property
    def host_shape(self) -> tuple[int, ...]:
        """Return [L, P * planes, C, D], the pool's layout over all pages."""
        return (self.layers, self.pages * self.planes, self.page_cells, self.head_dim)

    @property
    def bounds_shape(self) -> tuple[int, ...]:
        """Return [L, K, P, 2D]: maximum keys, then minimum keys, of every page."""
        return (self.layers, self.kv_heads, self.pages, 2 * self.head_dim)


def pages_of(cells: int, page_cells: int) -> int:
    """Return the pages that hold `cells` cells."""
    return -(-cells // page_cells)


def cell_bytes(config: LMConfig, dtype: torch.dtype) -> int:
    """Return the bytes of one cell, all attention layers of the main model."""
    return config.layers * 2 * config.kv_heads * config.head_dim * dtype.itemsize
