"""Prefetch in Triton: every launch covers all layers, and none overlaps with what is around it.

They stand on a side line of a captured round, behind a fork that waits for one launch and before a
join that waits for two: neither may be left early.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from strata.kernels.device import on_device_of
from strata.kernels.experts.routing import choose_experts
from strata.kernels.gather.triton import BLOCK_WORDS, MAX_PROGRAMS, copy_block
from strata.kernels.prefetch.state import COUNTS, Pending
from strata.kernels.resolve.policies import first_slots, lightest, sweep
from strata.kernels.resolve.state import SCALARS, ResolveState

BLOCK_SWEEP = 256
"""Slots that the hand passes at a time."""
NOTHING = tl.constexpr(-0x7FFFFFFFFFFFFFFF)


@triton.jit(do_not_specialize=["pages"])
def _forecast_pages(
    scores_ptr,
    own_ptr,
    table_ptr,
    out_ptr,
    pages,
    TAIL: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Take the best of one layer COUNT times: a key is a score, then the lower page."""
    layer = tl.program_id(0).to(tl.int64)
    scores_ptr += (tl.num_programs(0) - 1 - layer) * pages
    last = tl.load(own_ptr).to(tl.int32) - TAIL
    page = tl.arange(0, BLOCK)
    older = (page >= 1) & (page <= last)
    slot = tl.load(table_ptr + layer * pages + page, mask=older, other=0)
    absent = older & (slot < 0)
    bits = tl.load(scores_ptr + page, mask=absent, other=0.0).to(tl.int32, bitcast=True)
    image = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)  # orders as the scores do
    key = tl.where(absent, image * 65536 + (65535 - page), NOTHING)
    for i in range(COUNT):
        best = tl.max(key, 0)
        key = tl.where(key == best, NOTHING, key)
        chosen = tl.where(best == NOTHING, -1, 65535 - (best & 65535))
        tl.store(out_ptr + layer * COUNT + i, chosen.to(tl.int32))


@triton.jit
def _forecast_experts(
    x_ptr,
    router_ptr,
    ids_ptr,
    weights_ptr,
    experts,
    hidden,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_HIDDEN: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    choose_experts(
        x_ptr + row * hidden,
        router_ptr,
        ids_ptr + row * COUNT,
        weights_ptr + row * COUNT,
        experts,
        hidden,
        COUNT,
        False,
        True,
        BLOCK,
        BLOCK_HIDDEN,
    )


@triton.jit(do_not_specialize=["num_wanted", "base", "pages", "slots"])
def _reserve(
    wanted_ptr,
    own_ptr,
    table_ptr,
    owner_ptr,
    memory_ptr,
    stamp_ptr,
    scalars_ptr,
    out_pages_ptr,
    out_slots_ptr,
    since_ptr,
    counters_ptr,
    spare_ptr,
    num_wanted,
    base,
    pages,
    slots,
    COUNT: tl.constexpr,
    TAIL: tl.constexpr,
    KEEP: tl.constexpr,
    CLOCK: tl.constexpr,
    NUM_SCALARS: tl.constexpr,
    NUM_COUNTS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_WANTED: tl.constexpr,
    BLOCK_SWEEP: tl.constexpr,
    BLOCK_SLOTS: tl.constexpr,
):
    layer = tl.program_id(0).to(tl.int64)
    table_ptr += layer * pages
    owner_ptr += layer * slots
    memory_ptr += layer * slots
    stamp_ptr += layer * slots
    scalars_ptr += layer * NUM_SCALARS
    counters_ptr += layer * NUM_COUNTS
    first_page = (layer * pages).to(tl.int32)
    first_slot = (layer * slots).to(tl.int32)
    listed_ptr = spare_ptr + layer * (3 * COUNT)
    taken_ptr = listed_ptr + COUNT
    evicted_ptr = taken_ptr + COUNT
    filled = tl.load(scalars_ptr)
    time = tl.load(scalars_ptr + 1)
    epoch = tl.load(scalars_ptr + 2)
    keep = pages
    if KEEP:
        keep = tl.load(own_ptr).to(tl.int32) - TAIL + 1
    i = tl.arange(0, BLOCK)
    inside = i < COUNT
    to = layer * COUNT + i

    # Of the last reservation: what still has its slot, and was read since.
    slot = tl.load(out_slots_ptr + to, mask=inside, other=-1)
    there = slot >= 0
    page = tl.load(out_pages_ptr + to, mask=there, other=0) - first_page
    owner = tl.load(owner_ptr + slot - first_slot, mask=there, other=-1)
    stamp = tl.load(stamp_ptr + slot - first_slot, mask=there, other=0)
    used = there & (owner == page) & (stamp > tl.load(since_ptr + layer))
    num_used = tl.sum(used.to(tl.int32), 0)
    old_prefetched = tl.load(counters_ptr)
    old_used = tl.load(counters_ptr + 1)

    # What is wanted and has no slot, each page where it stands first.
    w = tl.arange(0, BLOCK_WANTED)
    at = wanted_ptr + layer * num_wanted
    want = tl.load(at + w, mask=w < num_wanted, other=-1).to(tl.int32)
    absent = (want >= 0) & (tl.load(table_ptr + want + base, mask=want >= 0, other=0) < 0)
    again = (want[None, :] == want[:, None]) & (w[None, :] < w[:, None])
    absent = absent & (tl.sum(again.to(tl.int32), 1) == 0)
    rank = tl.cumsum(absent.to(tl.int32), 0)
    tl.store(listed_ptr + rank - 1, want + base, mask=absent & (rank <= COUNT))
    number = tl.minimum(tl.sum(absent.to(tl.int32), 0), COUNT)

    free = tl.minimum(slots - filled, number)
    need = number - free
    found = need * 0
    tl.debug_barrier()
    tl.store(taken_ptr + i, filled + i, mask=i < free)
    if need > 0:
        if CLOCK:
            their, bit = first_slots(owner_ptr, memory_ptr, time, 0, slots, BLOCK_SWEEP)
            found, time = sweep(
                their,
                bit,
                owner_ptr,
                memory_ptr,
                stamp_ptr,
                taken_ptr + free,
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
                taken_ptr + free,
                evicted_ptr + free,
                need,
                keep,
                epoch,
                slots,
                BLOCK_SLOTS,
            )
    tl.debug_barrier()
    mask = i < free + found
    place = tl.load(taken_ptr + i, mask=mask, other=0)
    evicted = tl.load(evicted_ptr + i, mask=mask & (i >= free), other=-1)
    incoming = tl.load(listed_ptr + i, mask=mask, other=0)
    nobody = tl.full((BLOCK,), -1, tl.int32)
    tl.store(table_ptr + evicted, nobody, mask=evicted >= 0)
    tl.store(owner_ptr + place, nobody, mask=mask)
    tl.store(stamp_ptr + place, epoch + tl.zeros((BLOCK,), tl.int32), mask=mask)
    tl.store(out_pages_ptr + to, incoming + first_page, mask=mask)
    tl.store(out_slots_ptr + to, tl.where(mask, place + first_slot, -1), mask=inside)
    tl.store(scalars_ptr, filled + free)
    if CLOCK:
        tl.store(scalars_ptr + 1, time)
    tl.store(since_ptr + layer, epoch)
    tl.store(counters_ptr, old_prefetched + free + found)
    tl.store(counters_ptr + 1, old_used + num_used)


@triton.jit(do_not_specialize=["listed"])
def _fetch(
    host_ptr,
    pool_ptr,
    pages_ptr,
    slots_ptr,
    listed,
    PAGE_WORDS: tl.constexpr,
    PAGE_BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    for block in range(tl.program_id(0), listed * PAGE_BLOCKS, tl.num_programs(0)):
        copy_block(host_ptr, pool_ptr, pages_ptr, slots_ptr, block, PAGE_WORDS, PAGE_BLOCKS, BLOCK)


@triton.jit(do_not_specialize=["pages", "slots"])
def _publish(
    table_ptr,
    owner_ptr,
    memory_ptr,
    pages_ptr,
    slots_ptr,
    pages,
    slots,
    COUNT: tl.constexpr,
    CLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the entries of one layer; a slot comes unread, so it is soon given away again."""
    layer = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    slot = tl.load(slots_ptr + layer * COUNT + i, mask=i < COUNT, other=-1)
    there = slot >= 0
    page = tl.load(pages_ptr + layer * COUNT + i, mask=there, other=0)
    tl.store(table_ptr + page, slot - layer * slots, mask=there)
    tl.store(owner_ptr + slot, page - layer * pages, mask=there)
    if CLOCK:
        tl.store(memory_ptr + slot, tl.zeros((BLOCK,), tl.uint8), mask=there)
    else:
        tl.store(memory_ptr + slot, tl.full((BLOCK,), float("-inf"), tl.float64), mask=there)


def forecast_pages(
    scores: torch.Tensor, own: torch.Tensor, table: torch.Tensor, out: torch.Tensor, *, tail: int
) -> None:
    """Launch a program for each layer, which holds every key in registers; see the package."""
    layers, pages = table.shape
    assert scores.shape == table.shape
    assert scores.is_contiguous()
    assert pages <= 65536, "a page is 16 bits of a key"
    block = max(triton.next_power_of_2(pages), 128)
    with on_device_of(scores):
        _forecast_pages[(layers,)](
            scores,
            own,
            table,
            out,
            pages,
            TAIL=tail,
            COUNT=out.shape[1],
            BLOCK=block,
            num_warps=16 if block > 4096 else 4,
        )


def forecast_experts(
    x: torch.Tensor, router: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> None:
    """Launch a program for each row; see the package."""
    (rows, hidden), experts = x.shape, len(router)
    assert x.is_contiguous()
    block = max(triton.next_power_of_2(experts), 16)
    with on_device_of(x):
        _forecast_experts[(rows,)](
            x,
            router,
            ids,
            weights,
            experts,
            hidden,
            COUNT=ids.shape[1],
            BLOCK=block,
            BLOCK_HIDDEN=max(16, min(triton.next_power_of_2(hidden), 16384 // block)),
            num_warps=8,
        )


def reserve(
    state: ResolveState,
    wanted: torch.Tensor,
    out: Pending,
    *,
    base: int,
    own: torch.Tensor | None,
    tail: int,
    block_sweep: int = BLOCK_SWEEP,
) -> None:
    """Launch a program for each layer; see the package."""
    (layers, pages), slots = state.table.shape, state.owner.shape[1]
    count, clock = out.slots.shape[1], state.victims == "clock"
    assert wanted.is_contiguous()
    assert len(wanted) == layers
    block_slots = max(triton.next_power_of_2(slots), 64)
    with on_device_of(state.table):
        _reserve[(layers,)](
            wanted,
            state.scalars if own is None else own,
            state.table,
            state.owner,
            state.memory,
            state.stamp,
            state.scalars,
            out.pages,
            out.slots,
            out.since,
            out.counters,
            out.spare,
            wanted.shape[1],
            base,
            pages,
            slots,
            COUNT=count,
            TAIL=tail,
            KEEP=own is not None,
            CLOCK=clock,
            NUM_SCALARS=SCALARS,
            NUM_COUNTS=COUNTS,
            BLOCK=triton.next_power_of_2(count),
            BLOCK_WANTED=triton.next_power_of_2(wanted.shape[1]),
            BLOCK_SWEEP=block_sweep,
            BLOCK_SLOTS=block_slots,
            # No more threads than a block has elements, as in a resolve.
            num_warps=16 if not clock and block_slots > 4096 else max(1, min(block_sweep // 32, 4)),
        )


def fetch(host: torch.Tensor, pool: torch.Tensor, pending: Pending) -> None:
    """Copy pages of all layers in one launch whose grid depends on L and N alone."""
    page_bytes = pool[0].numel() * pool.element_size()
    assert page_bytes % 4 == 0, f"a page of {page_bytes} bytes is no whole number of words"
    page_blocks = triton.cdiv(page_bytes // 4, BLOCK_WORDS)
    listed = pending.slots.numel()
    with on_device_of(pool):
        _fetch[(min(listed * page_blocks, MAX_PROGRAMS),)](
            host.view(-1).view(torch.int32),
            pool.view(-1).view(torch.int32),
            pending.pages,
            pending.slots,
            listed,
            PAGE_WORDS=page_bytes // 4,
            PAGE_BLOCKS=page_blocks,
            BLOCK=BLOCK_WORDS,
            num_warps=8,
        )


def publish(state: ResolveState, pending: Pending) -> None:
    """Launch a program for each layer; see the package."""
    layers, count = pending.slots.shape
    with on_device_of(state.table):
        _publish[(layers,)](
            state.table,
            state.owner,
            state.memory,
            pending.pages,
            pending.slots,
            state.table.shape[1],
            state.owner.shape[1],
            COUNT=count,
            CLOCK=state.victims == "clock",
            BLOCK=triton.next_power_of_2(count),
            num_warps=1,
        )
