"""Which tensors a prompt needs on the device, and where they lie in the room it borrows.

How many rows a chunk has, how many of them are attended at a time, and how many earlier cells are
brought in at a time, follows from the room. None of these leaves a trace in any bit: every kernel
of a prompt works on rows by themselves, and attention carries its state unrounded from one piece
of the past to the next (`strata.kernels.attention.attend_prompt`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from strata.arena import Placed, tensor_bytes
from strata.kernels.attention import BLOCK_CELLS
from strata.kv.cache import SEED_ROWS
from strata.kv.geometry import KvGeometry
from strata.lm.config import LMConfig


class Way(NamedTuple):
    """How a prompt goes about its work."""

    chunk: int
    """Rows of a chunk."""
    tile: int
    """Rows attended at a time."""
    segment: int
    """Earlier cells brought in at a time."""
    late: bool = False
    """Whether a layer's experts come behind its attention, into the same room, and work on half
    of a tile; else they have a room of their own and come while the attention runs."""


WAYS = (
    Way(32768, 32768, 32768),
    Way(16384, 16384, 16384),
    Way(8192, 8192, 16384),
    Way(8192, 8192, 8192),
    Way(8192, 4096, 16384),
    Way(8192, 4096, 8192),
    Way(8192, 4096, 8192, late=True),
    Way(8192, 2048, 8192, late=True),
    Way(8192, 1024, 4096, late=True),
)
"""From the most room to the least; the last is what a session's smallest budget counts.

A tile of 2,048 rows of 8 heads is 128 programs of attention, fewer than a large GPU has room for.
"""
FREE_ROOM_BYTES = 256 << 20
"""The most room that a prompt takes where no budget says how much there is."""
MAX_GROUP = 64
DTYPES = (torch.bfloat16, torch.float32)


def serves_prompts(config: LMConfig, dtype: torch.dtype) -> bool:
    """Return whether kernels take prompts of such a model."""
    dim = config.head_dim
    return dtype in DTYPES and dim % 2 == 0 and 16 <= dim <= 128 and config.group <= MAX_GROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptShape:
    """What a prompt's room depends on."""

    config: LMConfig
    geometry: KvGeometry
    drafting: bool
    experts_on_host: bool

    @property
    def resident(self) -> bool:
        """Return whether the ring holds every page, so that nothing is brought in."""
        return self.geometry.holds_all

    def plans(self) -> list[PromptPlan]:
        """Return the possible plans, the one with the most room first."""
        return [PromptPlan(shape=self, way=way) for way in WAYS]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPlan:
    """One of WAYS to run a prompt of a shape."""

    shape: PromptShape
    way: Way

    @property
    def rows(self) -> int:
        """Return the rows of a chunk; what a session never holds needs no room."""
        g = self.shape.geometry
        return min(self.way.chunk, _round_up(g.pages * g.page_cells, BLOCK_CELLS))

    @property
    def tile(self) -> int:
        """Return the rows attended at a time."""
        return min(self.way.tile, self.rows)

    @property
    def expert_tile(self) -> int:
        """Return the rows that experts work on at a time."""
        return self.tile // 2 if self.way.late else self.tile

    @property
    def segment(self) -> int:
        """Return the earlier cells that are brought in at a time."""
        return self.way.segment

    @property
    def size_bytes(self) -> int:
        """Return the room that all tensors take."""
        return max(
            start + tensor_bytes(shape, dtype) for start, shape, dtype in self.places().values()
        )

    def places(self) -> dict[str, Placed]:
        """Return where each tensor begins, its shape and its type.

        What a layer's attention, its experts and the drafter need shares one room.
        """
        c, g = self.shape.config, self.shape.geometry
        kind, rows, tile, part = g.dtype, self.rows, self.tile, self.expert_tile
        pairs, page = part * c.experts_per_token, (g.planes, g.page_cells, g.head_dim)
        always: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "x": ((rows, c.hidden), kind),
            "tokens": ((rows + 1,), torch.int64),
            "turns": ((rows + 1, 2, c.head_dim // 2), kind),
            "queries": ((g.layers, SEED_ROWS, c.heads, c.head_dim), kind),
        }
        attention: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "q": ((tile, c.heads, c.head_dim), kind)
        }
        if not self.shape.resident:
            always["own"] = ((self._pages_over(rows), *page), kind)
        if not self.shape.resident and g.pages * g.page_cells > rows:
            segment = ((self._pages_over(self.segment), *page), kind)
            always |= {"segment 0": segment, "segment 1": segment}
            attention["sums"] = ((tile, c.heads, c.head_dim), torch.float32)
            attention["stats"] = ((tile, c.heads, 2), torch.float32)
        experts: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "normed": ((part, c.hidden), kind),
            "ids": ((part, c.experts_per_token), torch.int32),
            "weights": ((part, c.experts_per_token), kind),
            "order": ((pairs,), torch.int32),
            "starts": ((c.experts + 1,), torch.int32),
            "inner": ((pairs, c.expert_width), kind),
            "parts": ((pairs, c.hidden), kind),
        }
        if self.shape.experts_on_host:
            blobs = ((c.experts, 3 * c.expert_width, c.hidden), kind)
            (experts if self.way.late else always)["experts"] = blobs
        drafting: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        if self.shape.drafting:
            drafting = {
                "final": ((tile, c.hidden), kind),
                "wide": ((tile, 2 * c.hidden), kind),
                "mixed": ((tile, c.hidden), kind),
                "drafted": ((tile, g.planes, 1, g.head_dim), kind),
            }
        places, after = _lay(always, 0)
        for stage in (attention, experts, drafting):
            places |= _lay(stage, after)[0]
        return places

    def _pages_over(self, cells: int) -> int:
        """Return the pages that `cells` cells can touch, wherever they begin."""
        page = self.shape.geometry.page_cells
        aligned = self.way.chunk % page == 0 and cells % page == 0
        return min(cells // page + (0 if aligned else 2), self.shape.geometry.pages)


def _lay(
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]], start: int
) -> tuple[dict[str, Placed], int]:
    """Return the tensors one behind the other from byte `start` on, and where they end."""
    places: dict[str, Placed] = {}
    for name, (shape, dtype) in shapes.items():
        places[name] = (start, shape, dtype)
        start += tensor_bytes(shape, dtype)
    return places, start


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
