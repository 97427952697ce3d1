"""Cases of the K/V cache that a random walk meets too rarely."""

from __future__ import annotations

import pytest
import torch
from kv_model import DIM, GROUP, KV_HEADS, LAYERS, make_cache, small_integers

from strata.kv.geometry import pages_of

HEADS = KV_HEADS * GROUP


def fill(cache, cells, generator):
    for layer in range(LAYERS):
        cache.write_chunk(layer, small_integers(generator, cells, 2, KV_HEADS, DIM))
    cache.commit_chunk(cells)
    cache.note_prompt_end(small_integers(generator, LAYERS, min(64, cells), HEADS, DIM))
    cache.seed()


def window(cache, rows, commit, generator):
    cache.begin(rows)
    for layer in range(LAYERS):
        q = small_integers(generator, rows, HEADS, DIM)
        cache.attend(layer, q, small_integers(generator, rows, 2, KV_HEADS, DIM))
    cache.commit(commit)


@pytest.mark.parametrize("victims", ["clock", "lrfu"])
def test_a_page_born_for_rejected_drafts_keeps_its_slot(victims):
    """One cell a page and the fewest slots, so that every resolve needs victims."""
    generator = torch.Generator().manual_seed(0)
    cache = make_cache(page_cells=1, pages=400, slots=26, select_pages=16, victims=victims)
    fill(cache, 120, generator)
    for _ in range(30):
        window(cache, 8, 1, generator)
        born = cache.born_pages
        for _ in range(3):
            window(cache, 1, 1, generator)
        assert (cache.residency.table[:, cache.committed : born] >= 0).all()
        cache.residency.check_integrity()


def test_the_ring_is_seeded_with_tail_then_most_selected_then_newest():
    cache = make_cache(page_cells=16, pages=20, slots=6, select_pages=4, victims="clock")
    generator = torch.Generator().manual_seed(1)
    for layer in range(LAYERS):
        cache.write_chunk(layer, small_integers(generator, 250, 2, KV_HEADS, DIM))
    cache.commit_chunk(250)  # 16 pages, the last one not full
    cache._seed_counts = torch.zeros(LAYERS, 20, dtype=torch.long)
    cache._seed_counts[0, [2, 3, 4, 5, 9]] = torch.tensor([1, 5, 5, 6, 64])
    cache.seed()
    resident = [(cache.residency.table[layer] >= 0).nonzero()[:, 0].tolist() for layer in (0, 1)]
    assert resident == [[3, 4, 5, 9, 14, 15], [10, 11, 12, 13, 14, 15]]


def test_a_dense_ring_keeps_the_newest_pages_of_the_prompt():
    cache = make_cache(page_cells=4, pages=40, slots=8, select_pages=0, victims="clock")
    generator = torch.Generator().manual_seed(2)
    fill(cache, 40, generator)  # pages 2..9 of 0..9 have slots
    for _ in range(40):
        window(cache, 1, 1, generator)
    resident = (cache.residency.table[0] >= 0).nonzero()[:, 0].tolist()
    tail = cache.geometry.tail
    assert resident[-tail:] == [*range(20 - tail, 20)]
    assert resident[:-tail] == [*range(2, 10 - tail)]


def test_a_rejected_draft_never_changes_a_later_selection():
    """Two caches see the same committed cells; one also saw wild drafts that were rejected."""
    caches = [
        make_cache(page_cells=4, pages=60, slots=60, select_pages=7, victims="clock")
        for _ in range(2)
    ]
    for cache in caches:
        fill(cache, 101, torch.Generator().manual_seed(3))
    for step in range(60):
        q = small_integers(torch.Generator().manual_seed(step), LAYERS, 1, HEADS, DIM)
        cells = small_integers(torch.Generator().manual_seed(-step), LAYERS, 1, 2, KV_HEADS, DIM)
        wild = torch.full((LAYERS, 7, 2, KV_HEADS, DIM), 1e4)
        out = []
        for cache, drafts in zip(caches, (0, step % 8), strict=True):
            cache.begin(1 + drafts)
            for layer in range(LAYERS):
                rows = torch.cat([q[layer], q[layer].expand(drafts, -1, -1)])
                new = torch.cat([cells[layer], wild[layer, :drafts]])
                out.append(cache.attend(layer, rows, new)[0])
            cache.commit(1)
        pages = pages_of(caches[0].committed, 4)
        assert torch.equal(*(cache.bounds[:, :, :pages] for cache in caches))
        torch.testing.assert_close(out[:LAYERS], out[LAYERS:], atol=1e-6, rtol=1e-5)


def test_truncation_gives_back_the_bounds_of_the_shorter_context():
    cache = make_cache(page_cells=4, pages=30, slots=30, select_pages=7, victims="lrfu")
    fill(cache, 50, torch.Generator().manual_seed(4))
    before = cache.bounds[:, :, :13].clone()
    generator = torch.Generator().manual_seed(5)
    for _ in range(10):
        window(cache, 5, 3, generator)
    cache.truncate(50)
    assert torch.equal(cache.bounds[:, :, :13], before)
    assert cache.committed == 50


def test_a_window_past_the_max_context_is_refused():
    cache = make_cache(page_cells=4, pages=4, slots=4, select_pages=0, victims="clock")
    fill(cache, 12, torch.Generator().manual_seed(6))
    with pytest.raises(AssertionError, match="max context"):
        cache.begin(5)
