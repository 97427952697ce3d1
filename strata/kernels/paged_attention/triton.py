"""Paged attention in Triton: partial results of fixed splits, then one reduction in their order.

Everything that could make a row's bits depend on its company is fixed: the cells of a split and
of a block, the rows of a query tile, the order of the reduction. What varies between calls (rows,
grid, lengths) is never specialised on, so one binary serves them all.
"""

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of
from strata.kernels.interpreted import INTERPRETED
from strata.kernels.overlap import let_next_begin, overlapped, wait_for_previous
from strata.kernels.paged_attention import split_cells, split_shape
from strata.kernels.paged_attention.splits import Splits

TILE_ROWS = 8
"""Query rows of a dense tile, present or not."""
REDUCE_SPLITS = 256
"""Lanes of the reduction: lane i adds splits i, i + 256, ..., then the lanes are summed."""
REDUCE_DIMS = 16
BLOCK_CELLS = {"dense": 64, "selected": 128}
"""Cells that a program of 16-bit values has at hand: few programs of a list want them at once."""
LOG2_E = 1.4426950408889634  # scores are powers of two


@triton.jit(
    do_not_specialize=["rows", "splits", "listed_pages", "pages_stride"],
    do_not_specialize_on_alignment=["table_ptr", "positions_ptr", "pages_ptr"],
)
def _attend_splits(
    q_ptr,
    pool_ptr,
    host_ptr,
    table_ptr,
    positions_ptr,
    pages_ptr,
    sums_ptr,
    stats_ptr,
    rows,
    splits,
    listed_pages,
    q_stride,
    pages_stride,
    scale,
    SELECTED: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PAGE_CELLS: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    WIDEN: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    split = tl.program_id(0)
    head = tl.program_id(1)
    tile = tl.program_id(2)
    m = tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    row = tile * ROWS + m // GROUP
    given = (m < ROWS * GROUP) & (row < rows)
    position = tl.load(positions_ptr + row, mask=given, other=-1).to(tl.int32)
    last = tl.max(position, 0)
    first = tl.min(tl.where(given, position, last), 0)
    begin = split * SPLIT
    end = tl.minimum(begin + SPLIT, listed_pages * PAGE_CELLS)
    if not SELECTED:  # noqa: SIM102 (one condition is the compiler's)
        # The reduction never reads a split behind the last position.
        if begin > last:
            return

    q_at = row[:, None] * q_stride + (head * GROUP + m % GROUP)[:, None] * DIM + d[None, :]
    q = tl.load(q_ptr + q_at, mask=given[:, None] & (d[None, :] < DIM), other=0.0)  # [M, D]
    if WIDEN:
        q = q.to(tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for block in range(0, SPLIT, BLOCK_N):
        n = begin + block + tl.arange(0, BLOCK_N)
        listed = n < end
        page = n // PAGE_CELLS
        offset = n % PAGE_CELLS
        if SELECTED:
            page_at = pages_ptr + tile * pages_stride + page
            page = tl.load(page_at, mask=listed, other=0).to(tl.int32)
        cell = page * PAGE_CELLS + offset
        wanted = listed & (cell <= last)
        slot = tl.load(table_ptr + page, mask=wanted, other=0)
        plane = tl.where(slot >= 0, slot, page).to(tl.int64) * (2 * KV_HEADS) + head
        base = tl.where(slot >= 0, pool_ptr, host_ptr) + (plane * PAGE_CELLS + offset) * DIM
        at = base[:, None] + d[None, :]
        mask = wanted[:, None] & (d[None, :] < DIM)
        k = tl.load(at, mask=mask, other=0.0)  # [N, D]
        v = tl.load(at + KV_HEADS * PAGE_CELLS * DIM, mask=mask, other=0.0)
        if WIDEN:
            k = k.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # [M, N]
        visible = wanted[None, :] & (cell[None, :] <= position[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        pivot = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(scores - pivot[:, None])
        if not SELECTED:  # noqa: SIM102
            # Zero weight does not silence a NaN in the cell of a later row: such a value becomes
            # zero, and the weights of the rows that do read it become NaN.
            if begin + block + BLOCK_N - 1 > first:
                finite = tl.abs(v.to(tl.float32)) < float("inf")
                broken = tl.max(tl.where(finite, 0, 1), 1) > 0
                v = tl.where(broken[:, None], tl.zeros_like(v), v)
                weights = tl.where(visible & broken[None, :], float("nan"), weights)
        fade = tl.exp2(top - pivot)
        total = total * fade + tl.sum(weights, 1)
        narrow = weights.to(v.dtype)
        if WIDEN:
            narrow = narrow.to(tl.float32)
            v = v.to(tl.float32)
        acc = tl.dot(narrow, v, acc * fade[:, None], input_precision="ieee")
        top = new_top

    query = ((row * KV_HEADS + head) * GROUP + m % GROUP).to(tl.int64)
    part = query * splits + split
    tl.store(stats_ptr + part, top, mask=given)
    queries = rows * KV_HEADS * GROUP
    tl.store(stats_ptr + queries.to(tl.int64) * splits + part, total, mask=given)
    sums_at = part[:, None] * DIM + d[None, :]
    tl.store(sums_ptr + sums_at, acc, mask=given[:, None] & (d[None, :] < DIM))


@triton.jit(do_not_specialize=["splits"], do_not_specialize_on_alignment=["positions_ptr"])
def _reduce_splits(
    sums_ptr,
    stats_ptr,
    positions_ptr,
    out_ptr,
    splits,
    SELECTED: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    query = tl.program_id(0)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    count = splits
    if not SELECTED:
        position = tl.load(positions_ptr + query // HEADS).to(tl.int32)
        count = tl.minimum(position // SPLIT + 1, splits)
    totals_ptr = stats_ptr + tl.num_programs(0).to(tl.int64) * splits
    first = query.to(tl.int64) * splits
    lane = tl.arange(0, BLOCK_S)
    tops = tl.full([BLOCK_S], float("-inf"), tl.float32)
    for start in range(0, count, BLOCK_S):
        s = start + lane
        more = tl.load(stats_ptr + first + s, mask=s < count, other=float("-inf"))
        tops = tl.maximum(tops, more)
    top = tl.max(tops, 0)
    pivot = tl.where(top == float("-inf"), 0.0, top)
    # Lanes stay apart until the end, so that no turn of the loop waits for another lane.
    totals = tl.zeros([BLOCK_S], tl.float32)
    sums = tl.zeros([BLOCK_S, BLOCK_D], tl.float32)
    for start in range(0, count, BLOCK_S):
        s = start + lane
        there = s < count
        weights = tl.load(stats_ptr + first + s, mask=there, other=float("-inf"))
        weights = tl.exp2(weights - pivot)
        totals += tl.load(totals_ptr + first + s, mask=there, other=0.0) * weights
        at = (first + s)[:, None] * DIM + d[None, :]
        mask = there[:, None] & (d[None, :] < DIM)
        sums += tl.load(sums_ptr + at, mask=mask, other=0.0) * weights[:, None]
    out = tl.sum(sums, 0) / tl.sum(totals, 0)
    out_at = query.to(tl.int64) * DIM + d
    tl.store(out_ptr + out_at, out.to(out_ptr.dtype.element_ty), mask=d < DIM)


def attend_dense(
    q: torch.Tensor,
    pool: torch.Tensor,
    host: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    *,
    max_pages: int,
) -> torch.Tensor:
    """Launch over K/V heads x splits, all rows in one tile, then reduce."""
    splits = split_attention(q, pool, host, table, positions, None, _buffers(q, pool, max_pages))
    return _reduce(q, splits, positions)


def attend_selected(
    q: torch.Tensor,
    pool: torch.Tensor,
    host: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    pages: torch.Tensor,
) -> torch.Tensor:
    """Launch over rows x K/V heads x splits of a row's list, then reduce."""
    out = _buffers(q, pool, pages.shape[1])
    splits = split_attention(q, pool, host, table, positions, pages, out)
    return _reduce(q, splits, positions)


def split_attention(
    q: torch.Tensor,
    pool: torch.Tensor,
    host: torch.Tensor,
    table: torch.Tensor,
    positions: torch.Tensor,
    pages: torch.Tensor | None,
    out: tuple[torch.Tensor, torch.Tensor],
) -> Splits:
    """Return the splits of each row's `pages`, of every page where there is no list."""
    rows, kv_heads, group, dim = q.shape
    assert rows <= TILE_ROWS, f"{rows} rows in one call, at most {TILE_ROWS} are possible"
    if q.stride()[1:] != (group * dim, dim, 1):
        q = q.contiguous()
    assert pages is None or pages.stride(1) == 1, "a row's pages are contiguous"
    page_cells, heads = pool.shape[1], kv_heads * group
    split = split_cells(dim)
    split_pages = max(1, split // page_cells)
    selected = pages is not None
    tile_rows = 1 if selected else TILE_ROWS
    block_m = max(16, triton.next_power_of_2(tile_rows * group))
    splits = out[0].shape[1]
    assert out[0].shape == (rows * heads, splits, dim)
    with on_device_of(q):
        _attend_splits[(splits, kv_heads, rows if selected else 1)](
            q,
            pool,
            host,
            table,
            positions,
            table if pages is None else pages,
            *out,
            rows,
            splits,
            splits * split_pages if pages is None else pages.shape[1],
            q.stride(0),
            0 if pages is None else pages.stride(0),
            dim**-0.5 * LOG2_E,
            SELECTED=selected,
            KV_HEADS=kv_heads,
            GROUP=group,
            DIM=dim,
            PAGE_CELLS=page_cells,
            SPLIT=split_pages * page_cells,
            ROWS=tile_rows,
            BLOCK_M=block_m,
            BLOCK_N=min(split, BLOCK_CELLS["selected" if selected else "dense"])
            if q.element_size() == 2
            else 32,
            BLOCK_D=triton.next_power_of_2(dim),
            WIDEN=INTERPRETED,
            num_warps=8 if block_m > 64 else 4,
            num_stages=2,
            **overlapped(q),
        )
    return Splits(
        sums=out[0],
        stats=out[1],
        positions=None if selected else positions,
        cells=split_pages * page_cells,
    )


def _buffers(q: torch.Tensor, pool: torch.Tensor, pages: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows, kv_heads, group, dim = q.shape
    shape = split_shape(rows, kv_heads * group, dim, pages, pool.shape[1])
    sums = torch.empty(shape, dtype=torch.float32, device=q.device)
    return sums, torch.empty(2, *shape[:2], dtype=torch.float32, device=q.device)


def _reduce(q: torch.Tensor, splits: Splits, positions: torch.Tensor) -> torch.Tensor:
    """Return the attention [R, Q * D] of all splits."""
    queries, count, dim = splits.sums.shape
    heads = queries // len(q)
    out = torch.empty(len(q), heads * dim, dtype=q.dtype, device=q.device)
    with on_device_of(q):
        _reduce_splits[(queries, triton.cdiv(dim, REDUCE_DIMS))](
            splits.sums,
            splits.stats,
            positions,
            out,
            count,
            SELECTED=splits.positions is None,
            HEADS=heads,
            DIM=dim,
            SPLIT=splits.cells,
            BLOCK_S=REDUCE_SPLITS,
            BLOCK_D=REDUCE_DIMS,
            num_warps=8,
        )
    return out
