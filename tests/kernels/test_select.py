"""Selection against its reference: equal scores must choose equal pages."""

from __future__ import annotations

import pytest
import torch

from strata.kernels.select import ref
from tests.kernels.devices import DEVICES, rms_ratio

triton_select = pytest.importorskip("strata.kernels.select.triton")


def make_bounds(kv_heads: int, pages: int, dim: int, seed: int) -> torch.Tensor:
    torch.manual_seed(seed)
    a, b = torch.randn(2, kv_heads, pages, dim)
    return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], -1)


def own_pages(last: int, rows: int) -> torch.Tensor:
    """Return the own pages of a window whose rows cross into page `last` half way."""
    return torch.tensor([last - (r < rows // 2) for r in range(rows)])


def choose(
    scores: torch.Tensor, own: torch.Tensor, count: int, tail: int, warps: int | None = None
) -> torch.Tensor:
    out = torch.full((len(own), count), -7, dtype=torch.int32, device=scores.device)
    triton_select.choose_pages(
        scores, own.to(scores.device), count=count, tail=tail, out=out, warps=warps
    )
    return out.cpu().long()


def make_scores(kind: str, rows: int, pages: int) -> torch.Tensor:
    return {
        "random": torch.randn(rows, pages),
        "ties": torch.randint(-3, 4, (rows, pages)).float() * 0.5,
        "flat": torch.zeros(rows, pages) * torch.randn(rows, pages).sign(),  # both zeros
        "wide": torch.randn(rows, pages) * 10.0 ** torch.randint(-38, 38, (rows, pages)),
    }[kind]


def choose_ref(scores: torch.Tensor, own: torch.Tensor, count: int, tail: int) -> torch.Tensor:
    """Return what `ref.select_pages` chooses when its scores are `scores` [R, P]."""
    top = ref._top_pages(scores[:, 1 : int(own[-1]) - tail + 1], own - tail, count - 1 - tail)
    tails = own[:, None] + torch.arange(1 - tail, 1)
    selected = torch.cat([top.new_zeros(len(own), 1), top, tails], 1)
    return torch.where(own[:, None] < count, torch.arange(count), selected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("pages", "last", "rows", "count", "tail"),
    [
        (9, 8, 1, 4, 2),
        (33, 32, 3, 33, 2),  # every older page is wanted
        (64, 20, 8, 17, 2),
        (100, 99, 4, 3, 2),  # only page 0 and the tail
        (1000, 777, 2, 128, 2),
        (1000, 999, 1, 500, 10),
        (40, 17, 8, 17, 2),  # an earlier row has fewer pages than it may read
    ],
)
@pytest.mark.parametrize("kind", ["random", "ties", "flat", "wide"])
def test_equal_scores_choose_equal_pages(
    device: str, pages: int, last: int, rows: int, count: int, tail: int, kind: str
) -> None:
    torch.manual_seed(pages + rows)
    scores = make_scores(kind, rows, pages)
    own = own_pages(last, rows)
    expected = choose_ref(scores, own, count, tail)
    assert torch.equal(choose(scores.to(device), own, count, tail), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("warps", "pages", "last", "count"),
    [
        (1, 33, 32, 9),  # one tile
        (1, 700, 33, 9),  # of the tiles for 16, 4 and 1 tiles the least
        (1, 700, 150, 40),
        (1, 700, 699, 40),
        (1, 700, 699, 600),
        (2, 260, 259, 70),  # two tiles, the second smaller
        (4, 140, 139, 30),
    ],
)
@pytest.mark.parametrize("kind", ["random", "ties", "wide"])
def test_tiles_of_any_size_choose_equal_pages(
    device: str, warps: int, pages: int, last: int, count: int, kind: str
) -> None:
    torch.manual_seed(pages + last)
    scores, own = make_scores(kind, 2, pages), own_pages(last, 2)
    expected = choose_ref(scores, own, count, 2)
    assert torch.equal(choose(scores.to(device), own, count, 2, warps), expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kv_heads", "group", "dim", "pages"), [(1, 8, 64, 100), (2, 3, 32, 63), (1, 20, 20, 66)]
)
def test_scores_of_16_bits_are_exact_and_a_rows_own(
    device: str, kv_heads: int, group: int, dim: int, pages: int
) -> None:
    rows, tail = 5, 2
    bounds = make_bounds(kv_heads, pages, dim, seed=dim).bfloat16().float()
    bounds[:, -1, :dim], bounds[:, -1, dim:] = -torch.inf, torch.inf  # a newborn page
    q = torch.randn(rows, kv_heads, group, dim).bfloat16()
    own = own_pages(pages - 1, rows)
    expected = ref.score_pages(q, bounds[:, 1:])
    seen = {}
    for some in (1, 2, 5):
        scores = torch.full((some, pages), float("nan"), device=device)
        triton_select.score_pages(
            q[:some].to(device), bounds.to(device), own[-some:].to(device), tail=tail, out=scores
        )
        seen[some] = scores[:, 1 : pages - tail].cpu()
        assert rms_ratio(seen[some], expected[:some, : pages - tail - 1]) < 1e-6
    assert torch.equal(seen[1], seen[5][:1])
    assert torch.equal(seen[2], seen[5][:2])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kv_heads", "group", "dim", "pages"), [(1, 8, 64, 100), (2, 3, 32, 63), (1, 2, 20, 5)]
)
def test_scores_and_selection_agree_with_the_reference(
    device: str, kv_heads: int, group: int, dim: int, pages: int
) -> None:
    rows, tail = 3, 2
    count = max(pages // 3, 4)
    bounds = make_bounds(kv_heads, pages, dim, seed=dim)
    bounds[:, -1, :dim], bounds[:, -1, dim:] = -torch.inf, torch.inf  # a newborn page
    q = torch.randn(rows, kv_heads, group, dim)
    own = own_pages(pages - 1, rows)
    expected = ref.score_pages(q, bounds[:, 1:])
    scores = torch.full((rows, pages), float("nan"), device=device)
    triton_select.score_pages(
        q.to(device), bounds.to(device), own.to(device), tail=tail, out=scores
    )
    for r in range(rows):
        older = int(own[r]) - tail
        assert rms_ratio(scores[r, 1 : older + 1].cpu(), expected[r, :older]) < 1e-6
    out = triton_select.select_pages(
        q.to(device), bounds.to(device), own.to(device), count=count, tail=tail
    )
    assert out.dtype == torch.int64
    assert torch.equal(out.cpu(), choose_ref(scores.cpu().nan_to_num(), own, count, tail))
    assert torch.equal(out.cpu(), ref.select_pages(q, bounds, own, count=count, tail=tail))


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_does_not_depend_on_the_others(device: str) -> None:
    bounds = make_bounds(1, 70, 64, seed=1).to(device)
    packed = torch.randn(8, 9, 64, device=device).bfloat16()
    q = packed[:, :8].view(8, 1, 8, 64)  # rows apart, as a fused projection leaves them
    own = own_pages(69, 8).to(device)
    together = triton_select.select_pages(q, bounds, own, count=12, tail=2)
    for r in range(8):
        alone = triton_select.select_pages(q[r : r + 1], bounds, own[r : r + 1], count=12, tail=2)
        assert torch.equal(alone[0], together[r])


@pytest.mark.gpu
@pytest.mark.parametrize("pages", [8_256, 16_384])
def test_the_largest_session_on_the_device(pages: int) -> None:
    own = own_pages(pages - 1, 8)
    for scores in (torch.randn(8, pages), torch.randint(0, 50, (8, pages)).float()):
        for count in (128, pages // 8):
            expected = choose_ref(scores, own, count, 2)
            assert torch.equal(choose(scores.cuda(), own, count, 2), expected)


@pytest.mark.gpu
def test_a_captured_selection_follows_the_depth() -> None:
    bounds = make_bounds(1, 8_256, 64, seed=2).cuda()
    q = torch.randn(4, 1, 8, 64, device="cuda").bfloat16()
    own = own_pages(500, 4).cuda()
    scores = torch.empty(4, 8_256, device="cuda")
    out = torch.empty(4, 128, dtype=torch.int32, device="cuda")

    def launch() -> None:
        triton_select.select_pages(q, bounds, own, count=128, tail=2, out=out, scores=scores)

    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for last in (127, 128, 500, 8_255):
        own.copy_(own_pages(last, 4))
        out.fill_(-7)
        graph.replay()
        expected = triton_select.select_pages(q, bounds, own, count=128, tail=2)
        assert torch.equal(out.long(), expected)
