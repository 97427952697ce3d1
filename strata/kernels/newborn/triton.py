"""Slots of newborn pages: a program for each layer, which most windows leave at once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of
from strata.kernels.overlap import let_next_begin, overlapped, wait_for_previous
from strata.kernels.resolve import MAX_LRFU_SLOTS
from strata.kernels.resolve.policies import first_slots, lightest, sweep
from strata.kernels.resolve.ref import LRFU_DECAY
from strata.kernels.resolve.state import SCALARS, ResolveState

BLOCK = 512


@triton.jit(do_not_specialize=["rows", "pages", "slots"])
def _bear(
    base_ptr,
    table_ptr,
    owner_ptr,
    memory_ptr,
    stamp_ptr,
    spare_ptr,
    scalars_ptr,
    rows,
    pages,
    slots,
    PAGE_CELLS: tl.constexpr,
    TAIL: tl.constexpr,
    REPLACE: tl.constexpr,
    CLOCK: tl.constexpr,
    DECAY: tl.constexpr,
    NUM_SCALARS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_SLOTS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    layer = tl.program_id(0).to(tl.int64)
    table_ptr += layer * pages
    owner_ptr += layer * slots
    memory_ptr += layer * slots
    stamp_ptr += layer * slots
    spare_ptr += layer * 2
    scalars_ptr += layer * NUM_SCALARS
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    base = tl.load(base_ptr)
    first = (base // PAGE_CELLS).to(tl.int32)
    last = ((base + rows - 1) // PAGE_CELLS).to(tl.int32)
    for page in range(first, last + 1):
        if tl.load(table_ptr + page) < 0:
            filled = tl.load(scalars_ptr)
            time = tl.load(scalars_ptr + 1)
            epoch = tl.load(scalars_ptr + 2)
            keep = page - TAIL + 1
            free = filled < slots
            slot = filled
            evicted = filled * 0 - 1
            if REPLACE:
                epoch += 1
                found = filled * 0
                need = tl.where(free, 0, 1)
                if CLOCK:
                    owner, bit = first_slots(owner_ptr, memory_ptr, time, 0, slots, BLOCK)
                    found, time = sweep(
                        owner,
                        bit,
                        owner_ptr,
                        memory_ptr,
                        stamp_ptr,
                        spare_ptr,
                        spare_ptr + 1,
                        time,
                        need,
                        keep,
                        epoch,
                        slots,
                        BLOCK,
                    )
                else:
                    time += 1
                    if need > 0:
                        found = lightest(
                            owner_ptr,
                            memory_ptr,
                            stamp_ptr,
                            spare_ptr,
                            spare_ptr + 1,
                            need,
                            keep,
                            epoch,
                            slots,
                            BLOCK_SLOTS,
                        )
                tl.debug_barrier()
                if found > 0:
                    slot = tl.load(spare_ptr)
                    evicted = tl.load(spare_ptr + 1)
            else:
                # A free slot is read by a resolve as well; nothing else is ever chosen by reads.
                if not free:
                    for start in range(0, slots, BLOCK):
                        i = start + tl.arange(0, BLOCK)
                        owner = tl.load(owner_ptr + i, mask=i < slots, other=-1)
                        evicted = tl.maximum(evicted, tl.max(tl.where(owner < keep, owner, -1), 0))
                    if evicted >= 0:
                        slot = tl.load(table_ptr + evicted)
                else:
                    epoch += 1
                    if not CLOCK:
                        time += 1
            tl.debug_barrier()
            if free | (evicted >= 0):
                tl.store(table_ptr + page, slot)
                tl.store(owner_ptr + slot, page)
                if REPLACE | free:
                    if CLOCK:
                        tl.store(memory_ptr + slot, tl.full((), 1, tl.uint8))
                    else:
                        now = time.to(tl.float64) * tl.full((), DECAY, tl.float64)
                        tl.store(memory_ptr + slot, now)
                if evicted >= 0:
                    tl.store(table_ptr + evicted, -1)
            tl.store(scalars_ptr, tl.where(free, filled + 1, filled))
            tl.store(scalars_ptr + 1, time)
            tl.store(scalars_ptr + 2, epoch)
            tl.debug_barrier()  # the next page's slot is chosen by what this one left


def bear_pages(
    state: ResolveState,
    base: torch.Tensor,
    *,
    rows: int,
    page_cells: int,
    tail: int,
    replace: bool,
    block: int = BLOCK,
) -> None:
    """Bear in one launch; see the package."""
    layers, pages = state.table.shape
    slots = state.owner.shape[1]
    clock = state.victims == "clock"
    assert clock or not replace or slots <= MAX_LRFU_SLOTS
    block_slots = max(triton.next_power_of_2(slots), 64)
    with on_device_of(state.table):
        _bear[(layers,)](
            base,
            state.table,
            state.owner,
            state.memory,
            state.stamp,
            state.spare,
            state.scalars,
            rows,
            pages,
            slots,
            PAGE_CELLS=page_cells,
            TAIL=tail,
            REPLACE=replace,
            CLOCK=clock,
            DECAY=LRFU_DECAY,
            NUM_SCALARS=SCALARS,
            BLOCK=block,
            BLOCK_SLOTS=block_slots,
            # No more threads than a block has elements, as in a resolve.
            num_warps=16 if not clock and block_slots > 4096 else max(1, min(block // 32, 4)),
            **overlapped(state.table),
        )
