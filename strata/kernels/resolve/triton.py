"""Residency of a layer as one program: look up, rank the misses, choose victims, re-point.

Phases of a program hand lists to each other through global memory; a barrier stands between a
phase that writes and one that reads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of
from strata.kernels.overlap import let_next_begin, overlapped, wait_for_previous
from strata.kernels.resolve import MAX_LRFU_SLOTS
from strata.kernels.resolve.policies import first_slots, lightest, sweep
from strata.kernels.resolve.ref import LRFU_DECAY
from strata.kernels.resolve.state import COUNTS, SCALARS, Admitted, ResolveState

BLOCK = 1024
"""Entries looked up at a time."""
BLOCK_SWEEP = 256
"""Slots that the hand passes at a time."""


@triton.jit
def _add_read(weight, now):
    """Return log2(2^weight + 2^now) in float64; a weight of minus infinity has no past."""
    larger = tl.maximum(weight, now)
    smaller = tl.minimum(weight, now)
    return larger + tl.log2(1.0 + tl.exp2(smaller - larger))


@triton.jit
def _sort(from_ptr, to_ptr, count, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write `count` distinct numbers ascending: each one's place is how many are smaller."""
    for start in range(0, count, ROWS):
        i = start + tl.arange(0, ROWS)
        mine = tl.load(from_ptr + i, mask=i < count, other=0)
        place = tl.zeros((ROWS,), tl.int32)
        for other in range(0, count, COLUMNS):
            j = other + tl.arange(0, COLUMNS)
            theirs = tl.load(from_ptr + j, mask=j < count, other=0x7FFFFFFF)
            place += tl.sum((theirs[None, :] < mine[:, None]).to(tl.int32), 1)
        tl.store(to_ptr + place, mine, mask=i < count)


@triton.jit(do_not_specialize=["layer", "num_asked", "room", "base", "pages", "slots"])
def _resolve(
    pages_ptr,
    table_ptr,
    owner_ptr,
    memory_ptr,
    stamp_ptr,
    seen_ptr,
    spare_ptr,
    scalars_ptr,
    counters_ptr,
    out_pages_ptr,
    out_slots_ptr,
    out_count_ptr,
    keep_ptr,
    layer,
    num_asked,
    room,
    base,
    pages,
    slots,
    CLOCK: tl.constexpr,
    DISTINCT: tl.constexpr,
    KEEP: tl.constexpr,
    DECAY: tl.constexpr,
    NUM_SCALARS: tl.constexpr,
    NUM_COUNTS: tl.constexpr,
    OVERLAP: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_SWEEP: tl.constexpr,
    BLOCK_MISSES: tl.constexpr,
    BLOCK_SLOTS: tl.constexpr,
):
    layer = layer.to(tl.int64)
    table_ptr += layer * pages
    seen_ptr += layer * pages
    evicted_ptr = spare_ptr + room
    owner_ptr += layer * slots
    memory_ptr += layer * slots
    stamp_ptr += layer * slots
    scalars_ptr += layer * NUM_SCALARS
    counters_ptr += layer * NUM_COUNTS
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    filled = tl.load(scalars_ptr)
    time = tl.load(scalars_ptr + 1)
    epoch = tl.load(scalars_ptr + 2) + 1
    old_lookups = tl.load(counters_ptr)
    old_hits = tl.load(counters_ptr + 1)
    old_misses = tl.load(counters_ptr + 2)
    old_overflows = tl.load(counters_ptr + 3)
    keep = tl.load(keep_ptr).to(tl.int32) if KEEP else pages
    now = (time + 1).to(tl.float64) * tl.full((), DECAY, tl.float64)
    if CLOCK:
        owner, bit = first_slots(owner_ptr, memory_ptr, time, 0, slots, BLOCK_SWEEP)

    # Look up: hits are stamped and read now, misses listed, each page once. Of equal pages the
    # one whose number stuck in `seen` speaks for all; which one that is makes no difference.
    early = tl.arange(0, BLOCK)
    page = tl.load(pages_ptr + early, mask=early < num_asked, other=-1).to(tl.int32)
    slot = tl.load(table_ptr + page + base, mask=page >= 0, other=-1)
    if not DISTINCT:
        tl.store(seen_ptr + page + base, early, mask=page >= 0)
        for start in range(BLOCK, num_asked, BLOCK):
            i = start + tl.arange(0, BLOCK)
            later = tl.load(pages_ptr + i, mask=i < num_asked, other=-1).to(tl.int32)
            tl.store(seen_ptr + later + base, i, mask=later >= 0)
        tl.debug_barrier()
    listed_ptr = out_pages_ptr if DISTINCT else spare_ptr
    lookups = filled * 0
    missed = filled * 0
    for start in range(0, num_asked, BLOCK):
        i = start + tl.arange(0, BLOCK)
        asked = page >= 0
        page += base
        if not DISTINCT:
            asked = asked & (tl.load(seen_ptr + page, mask=asked, other=-1) == i)
        hit = asked & (slot >= 0)
        miss = asked & (slot < 0)
        tl.store(stamp_ptr + slot, epoch + tl.zeros((BLOCK,), tl.int32), mask=hit)
        if CLOCK:
            tl.store(memory_ptr + slot, tl.full((BLOCK,), 1, tl.uint8), mask=hit)
        else:
            weight = tl.load(memory_ptr + slot, mask=hit, other=0.0)
            tl.store(memory_ptr + slot, _add_read(weight, now), mask=hit)
        rank = missed + tl.cumsum(miss.to(tl.int32), 0)
        tl.store(listed_ptr + rank - 1, page, mask=miss)
        both = tl.sum(asked.to(tl.int32) + miss.to(tl.int32) * 65536, 0)  # a block has fewer
        lookups += both & 65535
        missed += both >> 16
        if start + BLOCK < num_asked:
            page = tl.load(pages_ptr + i + BLOCK, mask=i + BLOCK < num_asked, other=-1).to(tl.int32)
            slot = tl.load(table_ptr + page + base, mask=page >= 0, other=-1)

    # Slots: free ones first, then victims.
    free = tl.minimum(slots - filled, missed)
    need = missed - free
    found = need * 0
    if not CLOCK:
        time += 1
    if missed > 0:
        tl.debug_barrier()
        if not DISTINCT:
            _sort(spare_ptr, out_pages_ptr, missed, 32, 64)
        for start in range(0, free, BLOCK_MISSES):
            i = start + tl.arange(0, BLOCK_MISSES)
            tl.store(out_slots_ptr + i, filled + i, mask=i < free)
        if need > 0:
            if CLOCK:
                found, time = sweep(
                    owner,
                    bit,
                    owner_ptr,
                    memory_ptr,
                    stamp_ptr,
                    out_slots_ptr + free,
                    evicted_ptr + free,
                    time,
                    need,
                    keep,
                    epoch,
                    slots,
                    BLOCK_SWEEP,
                )
            else:
                found = lightest(
                    owner_ptr,
                    memory_ptr,
                    stamp_ptr,
                    out_slots_ptr + free,
                    evicted_ptr + free,
                    need,
                    keep,
                    epoch,
                    slots,
                    BLOCK_SLOTS,
                )
        tl.debug_barrier()
        # Re-point: who is evicted was not asked for, so the two stores to the table never meet.
        for start in range(0, free + found, BLOCK_MISSES):
            i = start + tl.arange(0, BLOCK_MISSES)
            mask = i < free + found
            incoming = tl.load(out_pages_ptr + i, mask=mask, other=0)
            place = tl.load(out_slots_ptr + i, mask=mask, other=0)
            evicted = tl.load(evicted_ptr + i, mask=mask & (i >= free), other=-1)
            tl.store(table_ptr + evicted, tl.full((BLOCK_MISSES,), -1, tl.int32), mask=evicted >= 0)
            tl.store(table_ptr + incoming, place, mask=mask)
            tl.store(owner_ptr + place, incoming, mask=mask)
            tl.store(stamp_ptr + place, epoch + tl.zeros((BLOCK_MISSES,), tl.int32), mask=mask)
            if CLOCK:
                tl.store(memory_ptr + place, tl.full((BLOCK_MISSES,), 1, tl.uint8), mask=mask)
            else:
                weight = tl.load(memory_ptr + place, mask=i < free, other=float("-inf"))
                tl.store(memory_ptr + place, _add_read(weight, now), mask=mask)
    admitted = free + found
    tl.store(scalars_ptr, filled + free)
    tl.store(scalars_ptr + 1, time)
    tl.store(scalars_ptr + 2, epoch)
    tl.store(out_count_ptr, admitted)
    tl.store(out_count_ptr + 1, missed)
    tl.store(counters_ptr, old_lookups + lookups)
    tl.store(counters_ptr + 1, old_hits + lookups - missed)
    tl.store(counters_ptr + 2, old_misses + missed)
    tl.store(counters_ptr + 3, old_overflows + missed - admitted)


def resolve(
    state: ResolveState,
    pages: torch.Tensor,
    out: Admitted,
    *,
    layer: int,
    keep_from: torch.Tensor | None = None,
    base: int = 0,
    distinct: bool = False,
    joined: bool = False,
    block: int = BLOCK,
    block_sweep: int = BLOCK_SWEEP,
) -> None:
    """Resolve `pages` in one program; see the package."""
    num_pages = state.table.shape[1]
    slots = state.owner.shape[1]
    clock = state.victims == "clock"
    assert clock or slots <= MAX_LRFU_SLOTS
    assert clock or block == BLOCK or slots <= 4096
    assert pages.is_contiguous()
    asked = pages.numel()
    assert out.pages.shape[0] == 1
    assert out.pages.shape[1] >= min(asked, num_pages)
    block = min(block, max(triton.next_power_of_2(asked), 128))
    block_sweep = min(block, block_sweep)
    # No more threads than a block has elements: copies of an element in another warp could
    # read a stamp after it was written.
    threads = block_sweep if clock else block
    warps = max(1, min(threads // 32, 8))
    block_slots = max(triton.next_power_of_2(slots), 64)
    with on_device_of(state.table):
        _resolve[(1,)](
            pages,
            state.table,
            state.owner,
            state.memory,
            state.stamp,
            state.seen,
            out.spare,
            state.scalars,
            state.counters,
            out.pages,
            out.slots,
            out.count,
            state.scalars if keep_from is None else keep_from,
            layer,
            asked,
            out.pages.shape[1],
            base,
            num_pages,
            slots,
            CLOCK=clock,
            DISTINCT=distinct,
            KEEP=keep_from is not None,
            DECAY=LRFU_DECAY,
            NUM_SCALARS=SCALARS,
            NUM_COUNTS=COUNTS,
            BLOCK=block,
            BLOCK_SWEEP=block_sweep,
            BLOCK_MISSES=min(block, 32 * warps),
            BLOCK_SLOTS=block_slots,
            num_warps=16 if not clock and block_slots > 4096 else warps,
            **overlapped(state.table, joined=joined),
        )
