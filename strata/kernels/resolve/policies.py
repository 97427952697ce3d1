"""Whose slots are taken, for one program that works on one layer: second chance, or LRFU.

Both write slots and, beside them, the pages that these slots held.
"""

from __future__ import annotations

import triton
import triton.language as tl

PLAIN_STEPS = tl.constexpr(8)
"""Steps that only count, at a third of the cost of those that also find weights."""


@triton.jit
def _sum_max(a, b, c, d):
    return a + c, tl.maximum(b, d)


@triton.jit
def _halves(a, b, c, d, e, f):
    return a + d, tl.maximum(b, e), tl.minimum(c, f)


@triton.jit
def first_slots(owner_ptr, bits_ptr, hand, start, slots, BLOCK: tl.constexpr):
    """Load owners and bits of the BLOCK slots that the hand meets after `start` others."""
    i = start + tl.arange(0, BLOCK)
    slot = tl.where(hand + i >= slots, hand + i - slots, hand + i)
    owner = tl.load(owner_ptr + slot, mask=i < slots, other=-1)
    return owner, tl.load(bits_ptr + slot, mask=i < slots, other=1)


@triton.jit
def sweep(
    owner,
    bit,
    owner_ptr,
    bits_ptr,
    stamp_ptr,
    out_ptr,
    evicted_ptr,
    hand,
    need,
    keep,
    epoch,
    slots,
    BLOCK: tl.constexpr,
):
    """Write at most `need` victims of a second-chance sweep; return their number and the hand.

    `owner` and `bit` are those of the first BLOCK slots. A victim of the first turn is stamped, so
    that what the second turn finds unstamped is what the first spared, in sweep order.
    """
    found = need * 0
    last = found - 1  # place of the last victim, in steps from the hand
    start = found
    while (start < slots) & (found < need):
        i = start + tl.arange(0, BLOCK)
        slot = tl.where(hand + i >= slots, hand + i - slots, hand + i)
        stamp = tl.load(stamp_ptr + slot, mask=i < slots, other=0)
        evictable = (owner >= 0) & (owner < keep) & (stamp != epoch)
        cold = evictable & (bit == 0)
        rank = found + tl.cumsum(cold.to(tl.int32), 0)
        victim = cold & (rank <= need)
        tl.store(out_ptr + rank - 1, slot, mask=victim)
        tl.store(evicted_ptr + rank - 1, owner, mask=victim)
        tl.store(stamp_ptr + slot, epoch + tl.zeros((BLOCK,), tl.int32), mask=victim)
        taken, furthest = tl.reduce((victim.to(tl.int32), tl.where(victim, i, -1)), 0, _sum_max)
        found += taken
        last = tl.maximum(last, furthest)
        passed = tl.where(found == need, last, start + BLOCK)
        tl.store(bits_ptr + slot, tl.zeros((BLOCK,), tl.uint8), mask=evictable & (i <= passed))
        start += BLOCK
        if (start < slots) & (found < need):
            owner, bit = first_slots(owner_ptr, bits_ptr, hand, start, slots, BLOCK)
    if found < need:
        tl.debug_barrier()
        start = need * 0
        while (start < slots) & (found < need):
            i = start + tl.arange(0, BLOCK)
            inside = i < slots
            slot = tl.where(hand + i >= slots, hand + i - slots, hand + i)
            owner = tl.load(owner_ptr + slot, mask=inside, other=-1)
            stamp = tl.load(stamp_ptr + slot, mask=inside, other=0)
            evictable = inside & (owner >= 0) & (owner < keep) & (stamp != epoch)
            rank = found + tl.cumsum(evictable.to(tl.int32), 0)
            victim = evictable & (rank <= need)
            tl.store(out_ptr + rank - 1, slot, mask=victim)
            tl.store(evicted_ptr + rank - 1, owner, mask=victim)
            furthest = tl.max(tl.where(victim, i, -1), 0)
            last = tl.where(furthest >= 0, furthest, last)
            found += tl.sum(victim.to(tl.int32), 0)
            start += BLOCK
    return found, tl.where(last >= 0, (hand + last + 1) % slots, hand)


@triton.jit
def lightest(
    owner_ptr,
    weight_ptr,
    stamp_ptr,
    out_ptr,
    evicted_ptr,
    need,
    keep,
    epoch,
    slots,
    BLOCK: tl.constexpr,
):
    """Write at most `need` lightest slots, by number, and their owners; return how many.

    The threshold is found by halving over integers that order as the float64 weights do. After a
    few steps both ends become weights of slots: those of equal weight share every bit, and plain
    halving would go through all of them.
    """
    slot = tl.arange(0, BLOCK)
    inside = slot < slots
    owner = tl.load(owner_ptr + slot, mask=inside, other=-1)
    stamp = tl.load(stamp_ptr + slot, mask=inside, other=0)
    evictable = inside & (owner >= 0) & (owner < keep) & (stamp != epoch)
    weight = tl.load(weight_ptr + slot, mask=evictable, other=0.0)
    bits = weight.to(tl.int64, bitcast=True)
    image = tl.where(bits < 0, bits ^ 0x7FFFFFFFFFFFFFFF, bits)
    low = tl.min(tl.where(evictable, image, 0x7FFFFFFFFFFFFFFF), 0)
    high = tl.max(tl.where(evictable, image, -0x7FFFFFFFFFFFFFFF), 0)
    found = tl.minimum(tl.sum(evictable.to(tl.int32), 0), need)
    steps = found * 0
    while low < high:
        middle = (low >> 1) + (high >> 1) + (low & high & 1)  # the sum may not fit
        under = evictable & (image <= middle)
        if steps < PLAIN_STEPS:
            reached = tl.sum(under.to(tl.int32), 0)
            low = tl.where(reached < found, middle + 1, tl.where(reached == found, middle, low))
            high = tl.where(reached >= found, middle, high)
        else:
            reached, under_most, over_least = tl.reduce(
                (
                    under.to(tl.int32),
                    tl.where(under, image, -0x7FFFFFFFFFFFFFFF),
                    tl.where(evictable & (image > middle), image, 0x7FFFFFFFFFFFFFFF),
                ),
                0,
                _halves,
            )
            low = tl.where(reached < found, over_least, tl.where(reached == found, under_most, low))
            high = tl.where(reached >= found, under_most, high)
        steps += 1
    below = (evictable & (image < low)).to(tl.int32)
    equal = (evictable & (image == low)).to(tl.int32)
    ties = found - tl.sum(below, 0)
    ranks = tl.cumsum(below + equal * 65536, 0)
    tie_rank = ranks >> 16
    place = (ranks & 65535) + tl.minimum(tie_rank, ties) - 1
    chosen = (below > 0) | ((equal > 0) & (tie_rank <= ties))
    tl.store(out_ptr + place, slot, mask=chosen)
    tl.store(evicted_ptr + place, owner, mask=chosen)
    return found
