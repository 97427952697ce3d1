"""Where a prompt's tensors lie, and what a session lends it."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from strata.arena import ALIGNMENT_BYTES, Arena, tensor_bytes
from strata.config import KvConfig, Selection, SessionConfig
from strata.errors import BudgetError
from strata.kernels import device
from strata.kv.geometry import KvGeometry
from strata.lm import LanguageModel
from strata.prompt.plan import WAYS, PromptPlan, PromptShape, serves_prompts
from strata.session import Session, create_session

CPU = torch.device("cpu")


def shape_of(
    model: LanguageModel, *, pages: int = 9000, slots: int = 512, page: int = 16
) -> PromptShape:
    c = model.config
    geometry = KvGeometry(
        layers=c.layers,
        kv_heads=c.kv_heads,
        head_dim=c.head_dim,
        page_cells=page,
        pages=pages,
        slots=slots,
        select_pages=0,
        dtype=torch.bfloat16,
    )
    return PromptShape(config=c, geometry=geometry, drafting=True, experts_on_host=True)


def spans(plan: PromptPlan, names: set[str]) -> list[tuple[int, int]]:
    return sorted(
        (start, start + tensor_bytes(shape, dtype))
        for name, (start, shape, dtype) in plan.places().items()
        if name in names
    )


STAGES = (
    {"q", "sums", "stats"},
    {"normed", "ids", "weights", "order", "starts", "inner", "parts", "experts"},
    {"final", "wide", "mixed", "drafted"},
)


@pytest.mark.parametrize("page", [16, 10, 1024])
def test_what_is_needed_at_once_does_not_overlap(bundled: LanguageModel, page: int) -> None:
    for plan in shape_of(bundled, page=page).plans():
        every = set(plan.places())
        always = every - set().union(*STAGES)
        assert {"x", "own", "segment 0", "segment 1"} <= always
        for stage in STAGES:
            placed = spans(plan, always | (stage & every))
            assert all(end <= start for (_, end), (start, _) in pairwise(placed))
            assert placed[-1][1] <= plan.size_bytes
        assert all(start % ALIGNMENT_BYTES == 0 for start, _, _ in plan.places().values())


def test_ways_go_from_the_most_room_to_the_least(bundled: LanguageModel) -> None:
    sizes = [plan.size_bytes for plan in shape_of(bundled).plans()]
    assert len(sizes) == len(WAYS)
    assert sizes == sorted(sizes, reverse=True)
    assert all(way.chunk >= 8192 and way.chunk % way.tile == 0 for way in WAYS)


def test_a_ring_of_every_page_needs_no_buffer_and_a_short_context_no_full_chunk(
    bundled: LanguageModel,
) -> None:
    whole = shape_of(bundled, pages=512, slots=512).plans()[-1].places()
    assert not {"own", "segment 0", "sums"} & set(whole)
    short = shape_of(bundled, pages=7, slots=5).plans()[0]
    assert short.rows == short.tile == 128
    assert "segment 0" not in short.places(), "there is no past to bring in"


@pytest.mark.parametrize(("page", "select"), [(5, 0), (5, 40), (9, 1), (100, 0), (1024, 0)])
def test_the_least_budget_that_is_named_is_enough_for_a_short_context(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch, page: int, select: int
) -> None:
    """A ring of fewer pages may not need more than one of all, or no ring would seem to fit."""
    monkeypatch.setattr(device, "has_kernels", lambda tensor: True)

    def create(budget_bytes: int) -> Session:
        kv = KvConfig(page_cells=page, selection=Selection(cells=select))
        config = SessionConfig(kv=kv, vram_budget_bytes=budget_bytes)
        return create_session(tiny, config, prompt_cells=2, max_new=3, environ={})

    with pytest.raises(BudgetError) as refused:
        create(1)
    named = re.search(r"least that can is (\d+)KiB", str(refused.value))
    assert named
    least = int(named[1]) * 1024
    assert sum(create(least).ledger.values()) <= least
    with pytest.raises(BudgetError):
        create(least - 1024)


def test_models_that_kernels_cannot_serve_are_told_apart(bundled: LanguageModel) -> None:
    config = bundled.config
    assert serves_prompts(config, torch.bfloat16)
    assert not serves_prompts(config, torch.float16)
    assert not serves_prompts(replace(config, head_dim=256), torch.bfloat16)


def test_lent_room_lies_over_what_is_lendable_and_books_the_rest() -> None:
    unit = ALIGNMENT_BYTES
    arena = Arena(8 * unit, CPU)
    kept = arena.take("tables", (unit,), torch.uint8)
    ring = arena.take("ring", (2 * unit,), torch.uint8, lendable=True)
    places = {
        "a": (0, (2 * unit,), torch.uint8),
        "b": (2 * unit, (3 * unit // 4,), torch.float32),
    }
    lent = arena.lend("workspace", 5 * unit, places)
    lent["a"].fill_(7)
    lent["b"].fill_(1.0)
    assert (ring == 7).all()
    assert not kept.any()
    assert arena.ledger == {"tables": unit, "ring": 2 * unit, "workspace": 3 * unit}
    assert arena.used_bytes == 6 * unit
    with pytest.raises(AssertionError, match="arena overrun: more of"):
        arena.lend("more", 8 * unit, {})
