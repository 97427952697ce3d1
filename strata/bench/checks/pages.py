"""Checks of what moves, chooses and reads pages."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from strata.bench.checks.inputs import ROWS, Inputs, same_bits
from strata.config import PAGE_CELLS, tail_pages
from strata.kernels import (
    append,
    gather,
    newborn,
    paged_attention,
    resolve,
    select,
    window_attention,
)


def check_gather(given: Inputs) -> bool:
    """Compare a gather whose list has an entry to skip and a count, byte by byte."""
    c, pages, slots = given.config, 24, 12
    planes = 2 * c.kv_heads
    host = given.normal(pages * planes, PAGE_CELLS, c.head_dim)
    pool = given.normal(slots * planes, PAGE_CELLS, c.head_dim)
    lists = (given.order(pages)[:slots].int(), given.order(slots).int())
    lists[1][2] = -1
    count = torch.tensor([slots - 3], dtype=torch.int32)
    expected = pool.clone()
    gather.ref.gather_pages(host, expected, *lists, count, planes=planes)
    got = given.put(pool)
    on_device = [given.put(t) for t in (*lists, count)]
    gather.gather_pages(given.pin(host), got, *on_device, planes=planes)
    return same_bits(got, expected)


def check_append(given: Inputs) -> bool:
    """Compare host store and pool, byte by byte; one row has no slot."""
    c = given.config
    cells = given.normal(ROWS, 2, c.kv_heads, c.head_dim)
    count = ROWS * 2 * c.kv_heads
    host, pool = given.normal(2 * count, c.head_dim), given.normal(2 * count, c.head_dim)
    rows = (given.order(2 * count)[:count], given.order(2 * count)[:count])
    rows[1][0] = -1
    expected = host.clone(), pool.clone()
    append.ref.append_cells(cells, expected[0], rows[0], expected[1], rows[1])
    got = given.pin(host), given.put(pool)
    append.append_cells(given.put(cells), got[0], given.put(rows[0]), got[1], given.put(rows[1]))
    given.wait()
    return all(same_bits(a, b) for a, b in zip(got, expected, strict=True))


def check_paged_attention(given: Inputs) -> bool:
    """Compare dense and selected reading, whole and in splits; half of the pages have slots."""
    c, pages, listed = given.config, 24, 10
    planes, last = 2 * c.kv_heads, pages * PAGE_CELLS - 7
    q = given.normal(ROWS, c.kv_heads, c.group, c.head_dim)
    host = given.normal(pages * planes, PAGE_CELLS, c.head_dim)
    table = torch.full((pages,), -1, dtype=torch.int32)
    kept = given.order(pages)[: pages // 2]
    table[kept] = given.order(len(kept)).int()
    pool = given.normal(len(kept) * planes, PAGE_CELLS, c.head_dim)
    positions = torch.arange(last - ROWS + 1, last + 1)
    own = torch.arange(pages - 2, pages)
    older = [given.order(pages - 2)[: listed - 2].sort().values for _ in range(ROWS)]
    chosen = torch.stack([torch.cat([each, own]) for each in older])
    dense = paged_attention.ref.attend_dense(q, pool, host, table, positions)
    selected = paged_attention.ref.attend_selected(q, pool, host, table, positions, chosen)
    there = (given.put(q), given.put(pool), given.pin(host), given.put(table), given.put(positions))
    lists = given.put(chosen)
    got = [paged_attention.attend_dense(*there), paged_attention.attend_selected(*there, lists)]
    for each, most in ((None, pages), (lists, listed)):
        shape = paged_attention.split_shape(ROWS, c.heads, c.head_dim, most, PAGE_CELLS)
        sums = torch.zeros(shape, device=given.device)
        out = (sums, torch.zeros(2, *shape[:2], device=given.device))
        got.append(paged_attention.split_attention(*there, each, out).reduced(ROWS))
    return all(map(given.near, got, (dense, selected, dense, selected)))


def check_window_attention(given: Inputs) -> bool:
    """Compare one drafter row over a ring that has wrapped."""
    c, window, capacity = given.config, 100, 109
    q = given.normal(ROWS, c.kv_heads, c.group, c.head_dim)
    ring = given.normal(capacity, 2, c.kv_heads, c.head_dim)
    position, row = torch.tensor([150]), torch.tensor([1])
    expected = window_attention.ref.attend_window(q, ring, position, window, row=row)
    shape = window_attention.window_shape(c.heads, c.head_dim, window)
    sums = torch.zeros(shape, device=given.device)
    got = window_attention.attend_window(
        given.put(q),
        given.put(ring),
        given.put(position),
        window,
        (sums, torch.zeros(2, *shape[:2], device=given.device)),
        row=given.put(row),
    )
    return given.near(got.reduced(1), expected.reduced(1))


def check_select(given: Inputs) -> bool:
    """Compare the pages chosen by whole numbers, whose scores are exact, and how bounds widen."""
    c, pages, count, tail = given.config, 60, 12, tail_pages(PAGE_CELLS)
    a, b = (given.whole(9, c.kv_heads, pages, c.head_dim).float() for _ in range(2))
    bounds = torch.cat([torch.maximum(a, b), torch.minimum(a, b)], -1)
    q = given.whole(4, ROWS, c.kv_heads, c.group, c.head_dim)
    own = torch.tensor([pages - 2, *[pages - 1] * (ROWS - 1)])
    expected = select.ref.select_pages(q, bounds, own, count=count, tail=tail)
    got = select.select_pages(
        given.put(q), given.put(bounds), given.put(own), count=count, tail=tail
    )
    return torch.equal(got.cpu(), expected) and all(_bounds_agree(given, bounds))


def _bounds_agree(given: Inputs, bounds: torch.Tensor) -> Iterator[bool]:
    """Yield whether bounds are the same behind a prompt's piece, and behind accepted rows."""
    c = given.config
    keys = given.normal(bounds.shape[1], 2 * c.kv_heads, PAGE_CELLS, c.head_dim)
    want, got = bounds.clone(), given.put(bounds)
    cells = range(PAGE_CELLS * 2 - 5, PAGE_CELLS * 4 + 3)
    select.ref.bound_pages(want, keys, first_page=0, cells=cells)
    select.bound_pages(got, given.put(keys), first_page=0, cells=cells)
    yield torch.equal(got.cpu(), want)
    want, got = bounds.expand(c.layers, -1, -1, -1).clone(), given.put(bounds)
    got = got.expand(c.layers, -1, -1, -1).contiguous()
    rows = given.normal(c.layers, ROWS + 2, 2, c.kv_heads, c.head_dim)
    positions = torch.arange(ROWS + 2) + PAGE_CELLS * 5 - 2  # the third row begins a page
    accepted = torch.tensor([ROWS])
    select.ref.widen_bounds(want, rows, positions, accepted, page_cells=PAGE_CELLS)
    there = (given.put(rows), given.put(positions), given.put(accepted))
    select.widen_bounds(got, *there, page_cells=PAGE_CELLS)
    yield torch.equal(got.cpu(), want)


def check_resolve(given: Inputs) -> bool:
    """Compare tables, owners, counts and lists of several resolves of windows that drift."""
    pages, slots, asked = 64, 24, 10
    mine, other = (
        resolve.ResolveState.empty(1, pages, slots, "clock", where)
        for where in (given.device, torch.device("cpu"))
    )
    out, expected = (
        resolve.Admitted.empty(1, ROWS * asked, state.table.device) for state in (mine, other)
    )
    keep = torch.tensor([pages - 2])
    for step in range(8):
        window = 2 * step + given.order(40)
        rows = torch.stack([window[given.order(40)[:asked]] for _ in range(ROWS)]).int()
        resolve.resolve(mine, given.put(rows), out, layer=0, keep_from=given.put(keep))
        resolve.ref.resolve(other, rows, expected, layer=0, keep_from=keep)
        admitted, missed = expected.count[0].tolist()
        pairs = [
            (mine.table, other.table),
            (mine.owner, other.owner),
            (mine.counters, other.counters),
            (out.count, expected.count),
            (out.pages[0, :missed], expected.pages[0, :missed]),
            (out.slots[0, :admitted], expected.slots[0, :admitted]),
        ]
        if not all(torch.equal(a.cpu(), b) for a, b in pairs):
            return False
    return True


def check_newborn(given: Inputs) -> bool:
    """Compare tables and owners of layers of which some have free slots, as windows go on."""
    layers, pages, slots, rows, first = 3, 64, 12, 8, 20
    for replace in (True, False):
        mine, other = (
            resolve.ResolveState.empty(layers, pages, slots, "clock", where)
            for where in (given.device, torch.device("cpu"))
        )
        filled = [slots - 2, slots, slots]
        for layer, count in enumerate(filled):
            held = torch.cat([given.order(first - 3)[: count - 3], torch.arange(first - 3, first)])
            for state in (mine, other):
                state.owner[layer, :count] = held.int().to(state.owner.device)
                state.table[layer, held.to(state.table.device)] = torch.arange(
                    count, dtype=torch.int32, device=state.table.device
                )
        for state in (mine, other):
            state.start(filled)
        rest = {"rows": rows, "page_cells": PAGE_CELLS, "tail": tail_pages(PAGE_CELLS)}
        for base in range(first * PAGE_CELLS - 2, (first + 4) * PAGE_CELLS, 5):
            at = torch.tensor([base])
            newborn.bear_pages(mine, given.put(at), replace=replace, **rest)
            newborn.ref.bear_pages(other, at, replace=replace, **rest)
            pairs = ((mine.table, other.table), (mine.owner, other.owner))
            if not all(torch.equal(a.cpu(), b) for a, b in pairs):
                return False
    return True
