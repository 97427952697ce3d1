"""Every tensor that rounds need on a device, by name: what a session carves for them.

A round that took memory from an allocator would take it outside of the budget, and a graph keeps
what it takes. So all of it is laid out when the session is created, and one table says what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import torch

from strata.config import Prefetch, Victims
from strata.kernels import experts as routed
from strata.kernels import out_proj, qkv
from strata.kernels.accept.board import BOARD_SHAPE
from strata.kernels.head import block_count
from strata.kernels.paged_attention import split_shape
from strata.kernels.prefetch import Pending
from strata.kernels.resolve import Admitted, ResolveState
from strata.kernels.wide import counter_shape, is_wide
from strata.kernels.window_attention import window_shape
from strata.kv.geometry import KvGeometry
from strata.lm.config import LMConfig

Spec = tuple[tuple[int, ...], torch.dtype]
Buffers = Mapping[str, torch.Tensor]

META = torch.device("meta")

PAGES_AHEAD = 2
"""Pages of a layer that a round fetches for the next one.

Each takes another page's slot, and more than two push out more than they bring
(`experiments/prefetch`).
"""


def round_buffers(
    config: LMConfig,
    geometry: KvGeometry,
    *,
    rows: int,
    victims: Victims,
    window_cells: int | None,
    expert_slots: int | None,
    prefetch: Prefetch = "none",
) -> dict[str, Spec]:
    """Return the shape and type of every tensor that rounds of at most `rows` rows need.

    `window_cells` is the drafter's window, None without one; `expert_slots` None is where every
    expert is on the device, as it is with a slot for each. All begin as zeros. Those for `prefetch`
    are there where `ahead` says.
    """
    c, g, kind = config, geometry, geometry.dtype
    cells = (rows, 2, c.kv_heads, c.head_dim)
    splits = split_shape(rows, c.heads, c.head_dim, g.select_pages or g.pages, g.page_cells)
    specs: dict[str, Spec] = {
        "board": (BOARD_SHAPE, torch.int64),
        **_rows(
            "main",
            c,
            rows,
            routed_to=c.experts,
            experts=c.experts_per_token,
            width=c.expert_width,
            dtype=kind,
        ),
        "main.cells": ((c.layers, *cells), kind),
        "main.ids": ((rows, c.experts_per_token), torch.int32),
        "main.weights": ((rows, c.experts_per_token), kind),
        "main.sums": (splits, torch.float32),
        "main.stats": ((2 * splits[0] * splits[1],), torch.float32),
        "head.shares": ((rows,), torch.float32),
        "head.parts": ((5, rows, block_count(c.vocab, c.hidden)), torch.float32),
        # What samplers with cuts draw from; a session does not know yet who will sample.
        "head.logits": ((rows, c.vocab), kind),
        "head.values": ((rows, c.vocab), torch.float32),
        "head.seen": ((c.vocab,), torch.int32),  # the same of samplers with a penalty
    }
    asked = max(1, min(rows * g.select_pages, g.pages))
    specs |= _residency("pages", g.layers, g.pages, g.slots, victims, asked)
    if g.select_pages:
        specs |= {
            "pages.first": ((g.select_pages,), torch.int64),
            "pages.scores": ((rows, g.pages), torch.float32),
            "pages.selected": ((rows, g.select_pages), torch.int64),
        }
    pages_ahead, experts_ahead = ahead(prefetch, c, g, expert_slots)
    if pages_ahead:
        specs |= {
            # The last rows of all layers stay until the round's end.
            "pages.scores": ((rows + g.layers - 1, g.pages), torch.float32),
            "pages.next.wanted": ((g.layers, PAGES_AHEAD), torch.int32),
            **_fields("pages.next", Pending.empty(g.layers, PAGES_AHEAD, META)),
        }
    if misses_experts(c, expert_slots):
        assert expert_slots is not None
        asked = rows * c.experts_per_token
        number = c.layers * c.experts
        specs |= _residency("experts", 1, number, expert_slots, "clock", asked)
    if experts_ahead:
        chosen = (rows, c.experts_per_token)
        specs |= {
            "experts.next.x": ((2, rows, c.hidden), kind),
            "experts.next.ids": (chosen, torch.int32),
            "experts.next.weights": (chosen, kind),
            **_fields("experts.next", Pending.empty(1, c.experts_per_token, META)),
        }
    if window_cells is not None:
        window = window_shape(c.heads, c.head_dim, window_cells)
        specs |= {
            **_rows(
                "draft",
                c,
                rows,
                routed_to=0,
                experts=1,
                width=c.mtp_dense_width,
                dtype=kind,
            ),
            "draft.cells": (cells, kind),
            "draft.sums": (window, torch.float32),
            "draft.stats": ((2, *window[:2]), torch.float32),
            "draft.ids": ((1, 1), torch.int32),
            "draft.weights": ((1, 1), kind),
            "draft.sure": ((2, 1), torch.bool),
        }
    return specs


def misses_experts(config: LMConfig, expert_slots: int | None) -> bool:
    """Return whether an expert may be missed: slots are there, and fewer than experts."""
    return expert_slots is not None and expert_slots < config.layers * config.experts


def ahead(
    prefetch: Prefetch, config: LMConfig, geometry: KvGeometry, expert_slots: int | None
) -> tuple[bool, bool]:
    """Return whether pages and whether experts are fetched ahead: those that may be missed."""
    pages = geometry.select_pages > 0 and not geometry.holds_all
    experts = config.layers > 1 and misses_experts(config, expert_slots)
    return prefetch in ("pages", "all") and pages, prefetch in ("experts", "all") and experts


def allocate(specs: Mapping[str, Spec], device: torch.device) -> Buffers:
    """Return tensors of their own for `specs`, for rounds outside of a session's arena."""
    return {
        name: torch.zeros(shape, dtype=dtype, device=device)
        for name, (shape, dtype) in specs.items()
    }


def of_part(buffers: Buffers, part: str) -> dict[str, torch.Tensor]:
    """Return the buffers of `part` by their own names."""
    start = f"{part}."
    return {name.removeprefix(start): t for name, t in buffers.items() if name.startswith(start)}


def resolve_state(
    buffers: Buffers, part: str, table: torch.Tensor, owner: torch.Tensor
) -> ResolveState:
    """Return a state over tables that are somebody else's, the rest in the buffers of `part`."""
    kept = of_part(buffers, part)
    names = {field.name for field in fields(ResolveState)} - {"table", "owner"}
    return ResolveState(table=table, owner=owner, **{name: kept[name] for name in names})


def admitted(buffers: Buffers, part: str) -> Admitted:
    """Return the lists that resolves write, in the buffers of `part`."""
    kept = of_part(buffers, part)
    return Admitted(**{field.name: kept[field.name] for field in fields(Admitted)})


def _rows(
    part: str,
    c: LMConfig,
    rows: int,
    *,
    routed_to: int,
    experts: int,
    width: int,
    dtype: torch.dtype,
) -> dict[str, Spec]:
    """Return what rows hand on, where `experts` of `routed_to` serve each, of `width` values."""
    f32, heads = torch.float32, c.heads + 2 * c.kv_heads
    out_parts = out_proj.part_shape(rows, c.hidden, c.heads, c.head_dim, routed_to)
    if is_wide(c.hidden):
        floats = max(out_parts[1], qkv.part_floats(c.hidden, heads, c.head_dim))
        out_parts = (rows, floats)
    return {
        f"{part}.residual": ((rows, c.hidden), dtype),
        f"{part}.normed": ((rows, c.hidden), dtype),
        f"{part}.q": ((rows, c.heads, c.head_dim), dtype),
        f"{part}.out_parts": (out_parts, f32),
        f"{part}.parts": (routed.part_shape(rows, experts, c.hidden, width), f32),
        f"{part}.counter": (counter_shape(rows, c.hidden, heads), torch.int32),
    }


def _residency(
    part: str, layers: int, pages: int, slots: int, victims: Victims, asked: int
) -> dict[str, Spec]:
    """Return a resolve's state but for its tables, and its lists of at most `asked` pages."""
    table = torch.zeros(layers, pages, dtype=torch.int32, device=META)
    owner = torch.zeros(layers, slots, dtype=torch.int32, device=META)
    state = _fields(part, ResolveState.over(table, owner, victims))
    tables = (f"{part}.table", f"{part}.owner")
    kept = {name: spec for name, spec in state.items() if name not in tables}
    return kept | _fields(f"{part}.in", Admitted.empty(1, asked, META))


def _fields(part: str, tensors: ResolveState | Admitted | Pending) -> dict[str, Spec]:
    """Return shape and type of each tensor of a dataclass."""
    found = {field.name: getattr(tensors, field.name) for field in fields(tensors)}
    return {f"{part}.{name}": (tuple(t.shape), t.dtype) for name, t in found.items()}
