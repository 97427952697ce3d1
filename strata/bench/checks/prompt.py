"""Checks of what a prompt's rows go through; operations and references are called alike."""

from __future__ import annotations

from typing import Any

import torch

from strata.bench.checks.inputs import Inputs
from strata.bench.checks.routing import chose, one_value_router
from strata.config import PAGE_CELLS
from strata.kernels import attention, grouped, project
from strata.lm.layers import Rotary

PROMPT_ROWS = 70
"""No whole number of blocks."""


CPU = torch.device("cpu")


def check_attention(given: Inputs) -> bool:
    """Compare a piece of a prompt that reads its past in two ranges."""
    c, first = given.config, 2 * attention.BLOCK_CELLS
    shape, end = (PROMPT_ROWS, c.heads, c.head_dim), first + PROMPT_ROWS
    pages = given.normal(-(-end // PAGE_CELLS), 2 * c.kv_heads, PAGE_CELLS, c.head_dim)
    q = given.normal(*shape)

    def run(op: Any, where: torch.device) -> torch.Tensor:
        sums = torch.zeros(shape, device=where)
        stats = torch.zeros(*shape[:2], 2, device=where)
        out = torch.zeros(shape, dtype=given.dtype, device=where)
        for cells in (range(attention.BLOCK_CELLS), range(attention.BLOCK_CELLS, end)):
            op.attend_prompt(
                q.to(where),
                pages.to(where),
                first_position=first,
                first_cell=0,
                cells=cells,
                sums=sums,
                stats=stats,
                last=cells.stop == end,
                out=out,
            )
        return out

    return given.near(run(attention, given.device), run(attention.ref, CPU))


def check_project(given: Inputs) -> bool:
    """Compare norms, a product that is added, and projected heads with their cells."""
    c, rows, first = given.config, PROMPT_ROWS, 5
    outputs = (c.heads + 2 * c.kv_heads) * c.head_dim
    x, norm = given.normal(rows, c.hidden), given.normal(c.hidden)
    weight = given.normal(outputs, c.hidden, scale=c.hidden**-0.5)
    head_norm = given.normal(c.heads + c.kv_heads, c.head_dim)
    before = given.normal(rows, outputs)
    cells = (-(-(first + rows) // PAGE_CELLS), 2 * c.kv_heads, PAGE_CELLS, c.head_dim)

    def run(op: Any, where: torch.device) -> list[torch.Tensor]:
        rows_in, gain, product = x.to(where), norm.to(where), before.clone().to(where)
        normed = torch.zeros_like(rows_in)
        q = torch.zeros(rows, c.heads, c.head_dim, dtype=given.dtype, device=where)
        pages = torch.zeros(cells, dtype=given.dtype, device=where)
        turns = torch.zeros(rows, 2, c.head_dim // 2, dtype=given.dtype, device=where)
        op.norm_rows(rows_in, gain, c.norm_eps, out=normed)
        op.write_product(rows_in, weight.to(where), product, add=True)
        op.write_turns(Rotary(c, where).inverse, first, turns)
        op.project_heads(
            rows_in,
            gain,
            weight.to(where),
            head_norm.to(where),
            turns,
            c.norm_eps,
            q=q,
            pages=pages,
            heads=range(c.heads + 2 * c.kv_heads),
            offset=first,
        )
        return [normed, product, turns, q, pages]

    return all(map(given.near, run(project, given.device), run(project.ref, CPU)))


def check_grouped(given: Inputs) -> bool:
    """Compare the choice of experts, their order, and the sum of what they give."""
    c, rows, count = given.config, PROMPT_ROWS, given.config.experts_per_token
    x, norm = given.normal(rows, c.hidden), given.normal(c.hidden)
    router, places = one_value_router(given)
    blobs = given.normal(c.experts, 3 * c.expert_width, c.hidden, scale=c.hidden**-0.5)
    normed = given.put(torch.zeros_like(x))
    ids = torch.zeros(rows, count, dtype=torch.int32, device=given.device)
    weights = torch.zeros(rows, count, dtype=given.dtype, device=given.device)
    grouped.norm_and_route(
        given.put(x),
        given.put(norm),
        given.put(router),
        c.norm_eps,
        normalise=c.normalise_router,
        normed=normed,
        ids=ids,
        weights=weights,
    )
    expected = torch.nn.functional.rms_norm(x.float(), (c.hidden,), norm.float(), c.norm_eps)
    if not given.near(normed, expected) or not chose(given, normed.cpu()[:, places], ids, weights):
        return False

    sorted_pairs = []
    for op, where in ((grouped, given.device), (grouped.ref, CPU)):
        order = torch.zeros(rows * count, dtype=torch.int32, device=where)
        starts = torch.zeros(c.experts + 1, dtype=torch.int32, device=where)
        op.sort_pairs(ids.to(where), order=order, starts=starts)
        sorted_pairs.append((order.cpu(), starts.cpu()))
    if not all(map(torch.equal, *sorted_pairs)):
        return False
    order, starts = sorted_pairs[1]

    def run(op: Any, where: torch.device) -> torch.Tensor:
        total = x.clone().to(where)
        op.add_experts(
            normed.to(where),
            blobs.to(where),
            weights.to(where),
            order=order.to(where),
            starts=starts.to(where),
            inner=torch.zeros(rows * count, c.expert_width, dtype=given.dtype, device=where),
            parts=torch.zeros(rows * count, c.hidden, dtype=given.dtype, device=where),
            x=total,
        )
        return total

    return given.near(run(grouped, given.device), run(grouped.ref, CPU))
