"""The K/V cache through kernels against the cache that gathers, step by step."""

from __future__ import annotations

import pytest
import torch

from strata.arena import Arena
from strata.kernels import device as kernel_device
from strata.kv.cache import KvCache
from strata.kv.geometry import KvGeometry
from strata.kv.paged import PagedTransfer
from strata.kv.reader import GatherReader, PagedReader
from tests.kernels.devices import DEVICES

pytest.importorskip("strata.kernels.paged_attention.triton")

LAYERS, KV_HEADS, GROUP, DIM = 2, 2, 3, 16
NAN = float("nan")


def make_cache(device: str, *, slots: int, select_pages: int) -> KvCache:
    geometry = KvGeometry(
        layers=LAYERS,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        page_cells=4,
        pages=24,
        slots=slots,
        select_pages=select_pages,
        dtype=torch.float32,
    )
    return KvCache(geometry, "clock", Arena(1 << 19, torch.device(device)))


class Pair:
    """The same steps in a cache that gathers on the CPU and in one that runs kernels."""

    def __init__(
        self, device: str, monkeypatch: pytest.MonkeyPatch, *, slots: int, select_pages: int
    ) -> None:
        self.device = device
        self.plain = make_cache("cpu", slots=slots, select_pages=select_pages)
        if device == "cpu":  # interpreted
            monkeypatch.setattr(kernel_device, "has_kernels", lambda tensor: True)
        self.paged = make_cache(device, slots=slots, select_pages=select_pages)
        assert isinstance(self.plain._reader, GatherReader)
        assert isinstance(self.paged._reader, PagedReader)
        assert isinstance(self.paged.transfer, PagedTransfer)
        torch.manual_seed(slots)

    def prefill(self, cells: int) -> None:
        new = torch.randn(LAYERS, cells, 2, KV_HEADS, DIM)
        q = torch.randn(LAYERS, cells, KV_HEADS * GROUP, DIM)
        for cache in (self.plain, self.paged):
            for layer in range(LAYERS):
                cache.write_chunk(layer, new[layer].to(cache.transfer.pool.device))
            cache.commit_chunk(cells)
            cache.note_prompt_end(q[:, -5:].to(cache.transfer.pool.device))
            cache.seed()
        self.check()

    def window(self, rows: int, commit: int) -> None:
        new = torch.randn(LAYERS, rows, 2, KV_HEADS, DIM)
        q = torch.randn(LAYERS, rows, KV_HEADS * GROUP, DIM)
        self.plain.begin(rows)
        self.paged.begin(rows)
        for layer in range(LAYERS):
            expected = self.plain.attend(layer, q[layer], new[layer])
            got = self.paged.attend(layer, q[layer].to(self.device), new[layer].to(self.device))
            torch.testing.assert_close(got.cpu(), expected, atol=2e-5, rtol=2e-5)
        self.plain.commit(commit)
        self.paged.commit(commit)
        self.check()

    def truncate(self, cells: int) -> None:
        self.plain.truncate(cells)
        self.paged.truncate(cells)
        self.check()

    def check(self) -> None:
        """Assert that stores, tables and counters agree."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        plain, paged = self.plain, self.paged
        assert torch.equal(paged.transfer.host, plain.transfer.host)
        assert torch.equal(paged.transfer.pool.cpu(), plain.transfer.pool)
        assert torch.equal(paged.residency.table.cpu(), plain.residency.table)
        assert paged.counters == plain.counters


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("slots", "select_pages", "prompt"),
    # A selection of 7 pages is reached within the windows that follow 22 cells.
    [(24, 0, 22), (8, 0, 35), (24, 7, 22), (12, 7, 66)],
)
def test_kernels_do_what_the_gathering_cache_does(
    device: str, monkeypatch: pytest.MonkeyPatch, slots: int, select_pages: int, prompt: int
) -> None:
    pair = Pair(device, monkeypatch, slots=slots, select_pages=select_pages)
    pair.prefill(prompt)
    for rows, commit in ((1, 1), (8, 5), (2, 2), (5, 3)):
        pair.window(rows, commit)
    pair.truncate(prompt - 3)
    pair.window(3, 1)
    assert pair.paged.counters.total().lookups > 0
    if slots < 24:
        assert pair.paged.counters.total().misses > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("select_pages", [0, 7])
def test_a_resident_page_is_read_from_its_slot_and_no_other_page_is(
    device: str, monkeypatch: pytest.MonkeyPatch, select_pages: int
) -> None:
    """The host copies of resident pages, and the slots that the table does not name, hold NaN."""
    pair = Pair(device, monkeypatch, slots=14, select_pages=select_pages)
    pair.prefill(70)
    cache, g = pair.paged, pair.paged.geometry
    host = cache.transfer.host.view(LAYERS, g.pages, -1)
    for layer in range(LAYERS):
        resident = (cache.residency.table[layer] >= 0).cpu()
        assert resident.any()
        host[layer, resident] = NAN
        free = (cache.residency.owner[layer] < 0).to(device)
        cache.transfer.pool.view(LAYERS, g.slots, -1)[layer, free] = NAN
    new = torch.randn(2, 2, KV_HEADS, DIM, device=device)
    q = torch.randn(2, KV_HEADS * GROUP, DIM, device=device)

    def attend() -> torch.Tensor:
        cache.begin(2)
        return cache.attend(0, q, new)

    assert attend().isfinite().all()
    tail_slot = int(cache.residency.table[0, cache.committed // 4])
    cache.transfer.pool.view(LAYERS, g.slots, -1)[0, tail_slot, -DIM * 4 :] = NAN
    cache.begin(2)
    new[:, 1, 0] = 0.0
    assert not cache.attend(0, q, new).isfinite().all()
