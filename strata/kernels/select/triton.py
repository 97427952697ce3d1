"""Page scoring and selection as two launches, the depth read from device memory.

Shapes: R rows, K K/V heads, G query heads per K/V head, P pages of the bounds, D head dimension,
M pages a row reads, T tail pages. A grid covers all P pages, so both launches can be captured;
programs past a row's older pages return at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of
from strata.kernels.interpreted import INTERPRETED
from strata.kernels.overlap import let_next_begin, overlapped, wait_for_previous
from strata.kernels.select.choose import choose_pages

SCORE_BLOCK = 32
"""Pages a scoring program reads: their bounds stay in registers while it goes through heads."""
DOT_BLOCK = 64
"""Pages of a matrix product, the fewest of the widest instruction."""


@triton.jit
def _score(
    q_ptr,
    bounds_ptr,
    own_ptr,
    out_ptr,
    q_row,
    pages,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    TAIL: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Write the scores of BLOCK pages for one row: largest head of sum_d max(q max, q min)."""
    row = tl.program_id(1)
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    older = tl.load(own_ptr + row).to(tl.int32) - TAIL
    first = tl.program_id(0) * BLOCK
    if first <= older:
        page = first + tl.arange(0, BLOCK)
        d = tl.arange(0, BLOCK_DIM)
        mask = ((page >= 1) & (page <= older))[:, None] & (d < DIM)[None, :]
        best = tl.full((BLOCK,), float("-inf"), tl.float32)
        for head in range(KV_HEADS):
            at = (head * pages + page)[:, None] * (2 * DIM) + d[None, :]
            high = tl.load(bounds_ptr + at, mask=mask, other=0.0)
            low = tl.load(bounds_ptr + at + DIM, mask=mask, other=0.0)
            for g in range(GROUP):
                at_q = row.to(tl.int64) * q_row + (head * GROUP + g) * DIM + d
                q = tl.load(q_ptr + at_q, mask=d < DIM, other=0.0).to(tl.float32)
                product = tl.maximum(q[None, :] * high, q[None, :] * low)
                best = tl.maximum(best, tl.sum(product, 1))
        tl.store(out_ptr + row.to(tl.int64) * pages + page, best, mask=page < pages)


@triton.jit(do_not_specialize=["rows"])
def _score_rows(
    q_ptr,
    bounds_ptr,
    own_ptr,
    out_ptr,
    q_row,
    pages,
    rows,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    TAIL: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_G: tl.constexpr,
    PER: tl.constexpr,
    WIDEN: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Write the scores of BLOCK pages for all rows of 16 bits, PER rows in a matrix product.

    The larger of q max and q min is (positive part of q) max + (negative part) min; of 16-bit
    numbers both are exact in float32. A column of the product is one head of one row, and no
    column depends on the others.
    """
    first = tl.program_id(0) * BLOCK
    page = first + tl.arange(0, BLOCK)
    d = tl.arange(0, BLOCK_D)
    column = tl.arange(0, PER * BLOCK_G)
    g = column % BLOCK_G
    let_next_begin(OVERLAP)
    # Bounds and own pages are the last round's: they are fetched while q is still computed.
    last = tl.load(own_ptr + rows - 1).to(tl.int32) - TAIL
    if first <= last:
        mask = ((page >= 1) & (page <= last))[:, None] & (d < DIM)[None, :]
        dtype = tl.float32 if WIDEN else q_ptr.dtype.element_ty
        at = bounds_ptr + page[:, None] * (2 * DIM) + d[None, :]
        if KV_HEADS == 1:
            high = tl.load(at, mask=mask, other=0.0).to(dtype)
            low = tl.load(at + DIM, mask=mask, other=0.0).to(dtype)
        wait_for_previous(OVERLAP)
        for start in range(0, rows, PER):
            row = start + column // BLOCK_G
            given = (row < rows) & (g < GROUP)
            best = tl.full((BLOCK, PER * BLOCK_G), float("-inf"), tl.float32)
            for head in tl.static_range(KV_HEADS):
                if KV_HEADS > 1:
                    to = at + head * pages * (2 * DIM)
                    high = tl.load(to, mask=mask, other=0.0).to(dtype)
                    low = tl.load(to + DIM, mask=mask, other=0.0).to(dtype)
                from_q = q_ptr + row.to(tl.int64) * q_row + (head * GROUP + g) * DIM
                inside = given[None, :] & (d < DIM)[:, None]
                q = tl.load(from_q[None, :] + d[:, None], mask=inside, other=0.0).to(dtype)
                zero = tl.zeros((BLOCK_D, PER * BLOCK_G), dtype)
                product = tl.dot(high, tl.where(q > 0, q, zero), input_precision="ieee")
                product = tl.dot(low, tl.where(q < 0, q, zero), product, input_precision="ieee")
                best = tl.maximum(best, tl.where(given[None, :], product, float("-inf")))
            score = tl.max(tl.reshape(best, (BLOCK, PER, BLOCK_G)), 2)
            r = start + tl.arange(0, PER)
            to = out_ptr + r.to(tl.int64)[None, :] * pages + page[:, None]
            tl.store(to, score, mask=(page < pages)[:, None] & (r < rows)[None, :])
    else:
        wait_for_previous(OVERLAP)  # who waits for this launch counts on those before it


@triton.jit(do_not_specialize=["first_page", "start", "end"])
def _bound(
    bounds_ptr,
    pages_ptr,
    first_page,
    start,
    end,
    pages,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE_CELLS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write the bounds of one page and head from its new keys."""
    page = start // PAGE_CELLS + tl.program_id(0)
    head = tl.program_id(1)
    d = tl.arange(0, BLOCK_D)
    inside = d < DIM
    to = bounds_ptr + (head * pages + page).to(tl.int64) * (2 * DIM) + d
    older = d < tl.where(page * PAGE_CELLS < start, DIM, 0)
    high = tl.load(to, mask=older, other=float("-inf"))
    low = tl.load(to + DIM, mask=older, other=float("inf"))
    plane = (page - first_page).to(tl.int64) * (2 * KV_HEADS) + head
    for first in range(0, PAGE_CELLS, BLOCK_C):
        offset = first + tl.arange(0, BLOCK_C)
        cell = page * PAGE_CELLS + offset
        given = (offset < PAGE_CELLS) & (cell >= start) & (cell < end)
        mask = given[:, None] & inside[None, :]
        at = pages_ptr + (plane * PAGE_CELLS + offset)[:, None] * DIM + d[None, :]
        keys = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        high = tl.maximum(high, tl.max(tl.where(given[:, None], keys, float("-inf")), 0))
        low = tl.minimum(low, tl.min(tl.where(given[:, None], keys, float("inf")), 0))
    tl.store(to, high, mask=inside)
    tl.store(to + DIM, low, mask=inside)


def bound_pages(
    bounds: torch.Tensor, pages: torch.Tensor, *, first_page: int, cells: range
) -> None:
    """Reset and widen in one launch, a program for each page and head."""
    _, planes, page_cells, dim = pages.shape
    assert bounds.is_contiguous()
    assert pages.is_contiguous()
    count = -(-cells.stop // page_cells) - cells.start // page_cells
    with on_device_of(bounds):
        _bound[(count, planes // 2)](
            bounds,
            pages,
            first_page,
            cells.start,
            cells.stop,
            bounds.shape[1],
            KV_HEADS=planes // 2,
            DIM=dim,
            PAGE_CELLS=page_cells,
            BLOCK_C=min(triton.next_power_of_2(page_cells), 32),
            BLOCK_D=triton.next_power_of_2(dim),
            num_warps=1,
        )


@triton.jit
def _widen(
    bounds_ptr,
    cells_ptr,
    positions_ptr,
    accepted_ptr,
    layer_stride,
    row_stride,
    pages,
    rows,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE_CELLS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Widen the bounds of one layer and head; rows of one page all write what they say together."""
    layer, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.arange(0, BLOCK_R)
    d = tl.arange(0, BLOCK_D)
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    kept = (row < rows) & (row <= tl.load(accepted_ptr).to(tl.int32))
    position = tl.load(positions_ptr + row, mask=kept, other=-1)
    page = tl.where(kept, position // PAGE_CELLS, -1)
    mask = kept[:, None] & (d < DIM)[None, :]
    cells_ptr += layer * layer_stride + head * DIM
    at = row.to(tl.int64)[:, None] * row_stride + d[None, :]
    key = tl.load(cells_ptr + at, mask=mask, other=0.0).to(tl.float32)
    bounds_ptr += (layer * KV_HEADS + head) * pages * (2 * DIM)
    at = page[:, None] * (2 * DIM) + d[None, :]
    # A page whose first cell is among the rows has no bounds to go on from.
    first = tl.min(tl.where(page[:, None] == page[None, :], position % PAGE_CELLS, PAGE_CELLS), 1)
    old = mask & (first > 0)[:, None]
    high = tl.load(bounds_ptr + at, mask=old, other=float("-inf"))
    low = tl.load(bounds_ptr + at + DIM, mask=old, other=float("inf"))
    shared = (page[:, None] == page[None, :])[:, :, None]
    high = tl.maximum(high, tl.max(tl.where(shared, key[None, :, :], float("-inf")), 1))
    low = tl.minimum(low, tl.min(tl.where(shared, key[None, :, :], float("inf")), 1))
    tl.debug_barrier()  # no row may write what another has yet to read
    tl.store(bounds_ptr + at, high, mask=mask)
    tl.store(bounds_ptr + at + DIM, low, mask=mask)


def widen_bounds(
    bounds: torch.Tensor,
    cells: torch.Tensor,
    positions: torch.Tensor,
    accepted: torch.Tensor,
    *,
    page_cells: int,
) -> None:
    """Widen in one launch, a program for each layer and head."""
    layers, rows, _, kv_heads, dim = cells.shape
    assert bounds.is_contiguous()
    assert cells[0, 0].is_contiguous()
    with on_device_of(bounds):
        _widen[(layers, kv_heads)](
            bounds,
            cells,
            positions,
            accepted,
            cells.stride(0),
            cells.stride(1),
            bounds.shape[2],
            rows,
            KV_HEADS=kv_heads,
            DIM=dim,
            PAGE_CELLS=page_cells,
            BLOCK_R=triton.next_power_of_2(rows),
            BLOCK_D=triton.next_power_of_2(dim),
            num_warps=1,
            **overlapped(bounds),
        )


def score_pages(
    q: torch.Tensor, bounds: torch.Tensor, own_page: torch.Tensor, *, tail: int, out: torch.Tensor
) -> torch.Tensor:
    """Write the scores of every older page of each row of `q` [R, K, G, D] into `out` [R, P].

    Pages that are not older than the tail, and page 0, are left as they were or hold no score.
    `bounds` are of keys of `q`'s type. Of what is captured in one graph nothing before this launch
    may write `bounds` or `own_page`, which are fetched while the launches before it still run.
    """
    rows, kv_heads, group, dim = q.shape
    q = _rows_apart(q)
    assert bounds.is_contiguous()
    assert out.is_contiguous()
    pages = bounds.shape[1]
    wide = q.element_size() == 4
    block = SCORE_BLOCK if wide else DOT_BLOCK
    sizes = {"KV_HEADS": kv_heads, "GROUP": group, "DIM": dim, "TAIL": tail, "BLOCK": block}
    block_dim = triton.next_power_of_2(dim)
    if wide:
        _score[(triton.cdiv(pages, block), rows)](
            q,
            bounds,
            own_page,
            out,
            q.stride(0),
            pages,
            **sizes,
            BLOCK_DIM=block_dim,
            num_warps=4,
            **overlapped(q),
        )
        return out
    heads = triton.next_power_of_2(group)
    _score_rows[(triton.cdiv(pages, block),)](
        q,
        bounds,
        own_page,
        out,
        q.stride(0),
        pages,
        rows,
        **sizes,
        BLOCK_D=max(block_dim, 16),
        BLOCK_G=heads,
        PER=max(16 // heads, 1),
        WIDEN=INTERPRETED,
        num_warps=4,
        # Bounds of several heads are read in the loop, and loads ahead would hold all of them in
        # shared memory at each stage: 276 KiB for two heads of 80.
        num_stages=3 if kv_heads == 1 else 1,
        **overlapped(q),
    )
    return out


def select_pages(
    q: torch.Tensor,
    bounds: torch.Tensor,
    own_page: torch.Tensor,
    *,
    count: int,
    tail: int,
    out: torch.Tensor | None = None,
    scores: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the `count` pages [R, M] that each row of `q` [R, K, G, D] reads, ascending.

    `own_page` [R] is read on the device; `out` (any integer type, int64 if not given) and `scores`
    [R, P] float32 are the caller's buffers where launches are captured.
    """
    rows, pages = len(q), bounds.shape[1]
    if scores is None:
        scores = torch.empty(rows, pages, dtype=torch.float32, device=q.device)
    if out is None:
        out = torch.empty(rows, count, dtype=torch.int64, device=q.device)
    with on_device_of(q):
        score_pages(q, bounds, own_page, tail=tail, out=scores)
        return choose_pages(scores, own_page, count=count, tail=tail, out=out)


def _rows_apart(q: torch.Tensor) -> torch.Tensor:
    """Return `q` [R, K, G, D] with each row contiguous, copied only if it is not."""
    return q if q[0].is_contiguous() else q.contiguous()
