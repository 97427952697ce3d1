"""Drive ring, page table and host store at random against a plain store of every cell."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kv_model import (
    GROUP,
    KV_HEADS,
    LAYERS,
    Shadow,
    check_contents,
    fewest_slots,
    make_cache,
    small_integers,
)

from strata.config import WINDOW_SLACK_CELLS, tail_pages
from strata.kernels.attention import attend_chunk
from strata.kv.geometry import pages_of

HEADS, DIM = KV_HEADS * GROUP, 4


class KvMachine(RuleBasedStateMachine):
    """Prompt chunks, windows with partial commits, and truncation, in any order."""

    @initialize(
        page_cells=st.sampled_from([1, 2, 3, 4, 16]),
        page_fraction=st.floats(0.3, 1),
        slot_fraction=st.floats(0, 1),
        older_pages=st.none() | st.integers(0, 6),
        victims=st.sampled_from(["clock", "lrfu"]),
        prompt=st.lists(st.integers(1, 24), min_size=1, max_size=3),
        segment=st.integers(1, 40),
        seed=st.integers(0, 2**16),
    )
    def start(
        self, page_cells, page_fraction, slot_fraction, older_pages, victims, prompt, segment, seed
    ):
        tail = tail_pages(page_cells)
        select_pages = 0 if older_pages is None else 1 + tail + older_pages
        prompt_pages = pages_of(sum(prompt) + WINDOW_SLACK_CELLS, page_cells)
        pages = prompt_pages + math.ceil(page_fraction * 70 / page_cells)
        fewest = fewest_slots(tail, select_pages, pages)
        slots = fewest + round(slot_fraction * (pages - fewest))
        self.g = torch.Generator().manual_seed(seed)
        self.cache = make_cache(
            page_cells=page_cells,
            pages=pages,
            slots=slots,
            select_pages=select_pages,
            victims=victims,
        )
        self.shadow = Shadow(self.cache.geometry)
        self.newest_page = -1
        self.moved_planes = 0
        queries = torch.cat([self.prefill(rows, segment) for rows in prompt], 1)
        self.cache.note_prompt_end(queries[:, -64:])
        self.cache.seed()
        self.newest_page = (len(self.shadow) - 1) // page_cells
        original = self.cache.transfer._from_host

        def count(layer, planes):
            self.moved_planes += len(planes)
            return original(layer, planes)

        self.cache.transfer._from_host = count

    def prefill(self, rows, segment):
        """Run a prompt chunk; return its queries [L, rows, Q, D]."""
        cache, shadow = self.cache, self.shadow
        q = small_integers(self.g, LAYERS, rows, HEADS, DIM)
        new = small_integers(self.g, rows, LAYERS, 2, KV_HEADS, DIM)
        for layer in range(LAYERS):
            cells = new[:, layer]
            cache.write_chunk(layer, cells)
            own = (cells[:, 0].transpose(0, 1), cells[:, 1].transpose(0, 1))
            grouped = q[layer].view(rows, KV_HEADS, GROUP, DIM)
            got = attend_chunk(grouped, own, cache.past(layer, segment))
            for row in range(rows):
                every = range((len(shadow) + row) // cache.geometry.page_cells + 1)
                expected = shadow.attention(layer, q[layer, row], cells, row, list(every))
                torch.testing.assert_close(got[row].double(), expected, atol=1e-4, rtol=1e-4)
        cache.commit_chunk(rows)
        shadow.cells = torch.cat([shadow.cells, new])
        return q

    def room(self):
        g = self.cache.geometry
        return g.pages * g.page_cells - len(self.shadow)

    @precondition(lambda self: self.room() > 0)
    @rule(rows=st.integers(1, 8), keep=st.floats(0, 1))
    def window(self, rows, keep):
        cache, shadow, g = self.cache, self.shadow, self.cache.geometry
        rows = min(rows, self.room())
        base = len(shadow)
        window = cache.begin(rows)
        last_page = (base + rows - 1) // g.page_cells
        self.newest_page = max(self.newest_page, last_page)
        q = small_integers(self.g, LAYERS, rows, HEADS, DIM)
        new = small_integers(self.g, rows, LAYERS, 2, KV_HEADS, DIM)
        for layer in range(LAYERS):
            before = replace(cache.counters.layers[layer])
            got = cache.attend(layer, q[layer], new[:, layer])
            read = [shadow.selected(layer, q[layer, r], base + r) for r in range(rows)]
            for row, pages in enumerate(read):
                expected = shadow.attention(layer, q[layer, row], new[:, layer], row, pages)
                torch.testing.assert_close(got[row].double(), expected, atol=1e-4, rtol=1e-4)
            done = cache.counters.layers[layer] - before
            named = {page for pages in read for page in pages}
            if not window.dense and min(map(len, read)) < g.select_pages:
                # A row at the border of dense reading names as many pages as any other.
                named |= {*range(g.select_pages)}
            assert done.lookups == len(named)
            if rows == 1 and not window.dense:
                assert done.overflows == 0, "one row's selection always fits"
        for page in range(base // g.page_cells, last_page + 1):
            assert (cache.residency.table[:, page] >= 0).all(), "a window's page lost its slot"
        committed = 1 + round(keep * (rows - 1))
        cache.commit(committed)
        shadow.cells = torch.cat([shadow.cells, new[:committed]])

    @precondition(lambda self: len(self.shadow) > 1)
    @rule(keep=st.floats(0.3, 1))
    def truncate(self, keep):
        cells = max(1, int(keep * len(self.shadow)))
        moved = self.moved_planes
        self.cache.truncate(cells)
        self.moved_planes = moved  # seeding is not a resolve
        self.shadow.cells = self.shadow.cells[:cells]
        self.newest_page = (cells - 1) // self.cache.geometry.page_cells

    @invariant()
    def store_and_slots_hold_what_was_committed(self):
        check_contents(self.cache, self.shadow)

    @invariant()
    def tables_agree(self):
        self.cache.residency.check_integrity()

    @invariant()
    def tail_pages_are_resident(self):
        g, newest = self.cache.geometry, self.newest_page
        if g.select_pages == 0:
            tail = self.cache.residency.table[:, max(0, newest - g.tail + 1) : newest + 1]
            assert (tail >= 0).all()

    @invariant()
    def counters_are_consistent(self):
        g, total = self.cache.geometry, self.cache.counters.total()
        for one in self.cache.counters.layers:
            assert one.lookups == one.hits + one.misses
            assert 0 <= one.overflows <= one.misses
            assert one.bytes == g.page_bytes * one.misses
        assert self.moved_planes == total.misses * g.planes, "planes moved and planes counted"


KvMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
test_kv_machine = pytest.mark.timeout(240)(KvMachine.TestCase)
