"""Choose the pages a row reads by an upper bound of q.k (Quest, Tang et al., ICML 2024).

Shapes: R rows, K K/V heads, G query heads per K/V head, P pages, D head dimension, M pages a
row reads, T tail pages. Bounds of a layer are [K, P, 2D]: the maximum key, then the minimum.
"""

from __future__ import annotations

import torch


def update_bounds(bounds: torch.Tensor, pages: torch.Tensor, keys: torch.Tensor) -> None:
    """Widen `bounds` [..., K, P, 2D] in place by committed `keys` [..., n, K, D] of `pages` [n].

    A page's bounds must have been reset to (-inf, +inf) when the page was born.
    """
    dim = keys.shape[-1]
    keys = keys.transpose(-3, -2).float()
    at = pages[:, None].expand_as(keys)
    bounds[..., :dim].scatter_reduce_(-2, at, keys, "amax")
    bounds[..., dim:].scatter_reduce_(-2, at, keys, "amin")


def widen_bounds(
    bounds: torch.Tensor,
    cells: torch.Tensor,
    positions: torch.Tensor,
    accepted: torch.Tensor,
    *,
    page_cells: int,
) -> None:
    """Take the rows one by one; the first cell of a page says alone what its bounds are."""
    for row in range(min(int(accepted) + 1, cells.shape[1])):
        page, offset = divmod(int(positions[row]), page_cells)
        keys = cells[:, row, 0].float()
        high, low = bounds[:, :, page].chunk(2, -1)
        if offset:
            high, low = torch.maximum(high, keys), torch.minimum(low, keys)
        else:
            high = low = keys
        bounds[:, :, page] = torch.cat([high, low], -1)


def bound_pages(
    bounds: torch.Tensor, pages: torch.Tensor, *, first_page: int, cells: range
) -> None:
    """Reset what is born, then widen by every new key."""
    planes, page_cells, dim = pages.shape[1:]
    position = torch.arange(cells.start, cells.stop, device=pages.device)
    page, offset = position // page_cells, position % page_cells
    born, end = -(-cells.start // page_cells), -(-cells.stop // page_cells)
    bounds[:, born:end, :dim] = -torch.inf
    bounds[:, born:end, dim:] = torch.inf
    update_bounds(bounds, page, pages[page - first_page, : planes // 2, offset])


def score_pages(q: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """Return the upper bound of q.k for `q` [R, K, G, D] over `bounds` [K, P, 2D] as [R, P].

    The bound of one head is sum_d max(q_d max_d, q_d min_d); a page takes its largest head's, so
    that a layer reads one set of pages. Float32 throughout.
    """
    rows, kv_heads, group, dim = q.shape
    q = q.float().transpose(0, 1).reshape(kv_heads, rows * group, dim)
    positive = q.clamp_min(0)
    scores = torch.cat([positive, q - positive], -1) @ bounds.transpose(1, 2)
    return scores.view(kv_heads, rows, group, -1).amax((0, 2))


def _top_pages(scores: torch.Tensor, older: torch.Tensor, count: int) -> torch.Tensor:
    """Return the `count` best pages [R, count] of `scores` [R, N] over pages 1..N, ascending.

    Row r may take pages up to `older`[r] only; equal scores go to the lower page.
    """
    candidates = torch.arange(1, scores.shape[1] + 1, device=scores.device)
    scores = scores.masked_fill(candidates > older[:, None], -torch.inf)
    best = scores.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return best.sort(-1).values + 1


def select_pages(
    q: torch.Tensor,
    bounds: torch.Tensor,
    own_page: torch.Tensor,
    *,
    count: int,
    tail: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the `count` pages [R, M] that each row of `q` [R, K, G, D] reads, ascending.

    Page 0, the best older pages, then the `tail` pages up to `own_page` [R]. The last row must have
    at least `count` pages up to its own; a session whose depth is less reads them all instead. An
    earlier row with fewer, at that border, takes pages 0 .. count - 1 and masks what follows it.
    Scores of older pages go to `out` [R, P], too, where it is given.
    """
    rows = q.shape[0]
    last_older = int(own_page[-1]) - tail
    scores = score_pages(q, bounds[:, 1 : last_older + 1])
    if out is not None:
        out[:, 1 : last_older + 1] = scores
    top = _top_pages(scores, own_page - tail, count - 1 - tail)
    tails = own_page[:, None] + torch.arange(1 - tail, 1, device=q.device)
    selected = torch.cat([top.new_zeros(rows, 1), top, tails], 1)
    first = torch.arange(count, device=q.device)
    return torch.where(own_page[:, None] < count, first, selected)


def count_selected(pages: torch.Tensor, counts: torch.Tensor) -> None:
    """Add to `counts` [P] how many rows of `pages` [R, M] selected each page."""
    flat = pages.flatten()
    counts.scatter_add_(0, flat, torch.ones_like(flat, dtype=counts.dtype))
