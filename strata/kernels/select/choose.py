"""The choice of pages from their scores: one program a row, every score in a register.

Shapes: R rows, P pages, M pages a row reads, T tail pages. A row's scores are a tile
[32, G, TILES]: 32 lanes, G warps, TILES registers, in the order of pages from the last axis but
one, so that 32 neighbours are one word of flags.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from strata.kernels.overlap import let_next_begin, overlapped, wait_for_previous
from strata.kernels.select import MAX_FUSED_PAGES

LANES = tl.constexpr(32)


@triton.jit
def _ends(a, b, c, d):
    return tl.minimum(a, c), tl.maximum(b, d)


@triton.jit
def _sum_and_last(a, b, c, d):
    return a + c, d


@triton.jit
def _ones(word):
    """Count the bits of `word`, by steps that a compiler knows for one instruction."""
    x = word.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def _image(score):
    """Return the integer that orders as the float32 does."""
    bits = score.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def _score_of(image):
    """Return the float32 of an `_image`."""
    bits = image.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _tile(scores_ptr, first, last, GROUPS: tl.constexpr, TILES: tl.constexpr):
    """Load scores from page `first` on, NaN behind `last`: no comparison with it holds."""
    corner = tl.arange(0, LANES)[:, None] + tl.arange(0, GROUPS)[None, :] * (TILES * LANES) + first
    step = tl.arange(0, TILES)[None, None, :] * LANES
    valid = step <= (last - corner)[:, :, None]
    score = tl.load((scores_ptr + corner)[:, :, None] + step, mask=valid, other=float("nan"))
    return score, tl.reduce((score, score), 2, _ends)


@triton.jit
def _reach(score, least):
    """Count for each thread the scores that are `least` or more (a sum of floats is cheaper)."""
    return tl.sum(tl.where(score >= least, 1.0, 0.0), 2).to(tl.int32)


@triton.jit
def _words(flag, GROUPS: tl.constexpr, TILES: tl.constexpr):
    """Return flags [32, G, TILES] as [G * TILES] words."""
    bit = 1 << tl.arange(0, LANES)
    return tl.reshape(tl.sum(tl.where(flag, bit[:, None, None], 0), 0), (GROUPS * TILES,))


@triton.jit
def _behind(a, b, TIMES: tl.constexpr, COUNT: tl.constexpr):
    """Return `a` [TIMES * COUNT], then `b` [COUNT], then zeros up to twice the length of `a`."""
    more = tl.where(tl.arange(0, TIMES)[:, None] == 0, b[None, :], 0)
    both = tl.join(a, tl.reshape(more, (TIMES * COUNT,)))
    return tl.reshape(tl.permute(both, (1, 0)), (2 * TIMES * COUNT,))


@triton.jit
def _among(
    scores_ptr,
    out_ptr,
    last,
    want,
    GROUPS: tl.constexpr,
    TILES: tl.constexpr,
    MORE: tl.constexpr,
):
    """Write the best `want` of pages 1 .. `last`, ascending, from place 1 on.

    The tile has TILES * G * 32 pages, a second one MORE * G * 32: powers of two, which together
    waste less than one does. The threshold is the largest score that at least `want` candidates
    reach, found by halving between integers that order as scores do.
    """
    FIRST: tl.constexpr = TILES * GROUPS
    score, ends = _tile(scores_ptr, 1, last, GROUPS, TILES)
    least, most = ends
    if MORE > 0:
        more, ends = _tile(scores_ptr, 1 + FIRST * LANES, last, GROUPS, MORE)
        least, most = _ends(least, most, ends[0], ends[1])
    # Each thread's largest score is reached by a candidate of its own: where there are `want` such
    # threads, the least of their largest is a threshold already, and closer than the least of all.
    whole = last // (TILES * LANES)
    threads = whole * LANES + tl.minimum(last - whole * (TILES * LANES), LANES)
    enough = (tl.minimum(threads, GROUPS * LANES) >= want) & (last > want)
    start, end = tl.reduce((tl.ravel(tl.where(enough, most, least)), tl.ravel(most)), 0, _ends)
    low = _image(start)
    high = _image(end) + 1
    at_low = last
    at_high = want * 0
    while (at_low != want) & (high - low > 1):
        middle = low + ((high - low) >> 1)
        found = _reach(score, _score_of(middle))
        if MORE > 0:
            found += _reach(more, _score_of(middle))
        count = tl.sum(tl.ravel(found), 0)
        up = count >= want
        low = tl.where(up, middle, low)
        at_low = tl.where(up, count, at_low)
        high = tl.where(up, high, middle)
        at_high = tl.where(up, at_high, count)
    threshold = _score_of(low)
    word = _words(score >= threshold, GROUPS, TILES)
    if MORE > 0:
        in_more = _words(more >= threshold, GROUPS, MORE)
        word = _behind(word, in_more, TILES // MORE, GROUPS * MORE)
    if at_low != want:
        # Too many equal the threshold: the lowest pages of them are in.
        equal = _words(score == threshold, GROUPS, TILES)
        if MORE > 0:
            in_more = _words(more == threshold, GROUPS, MORE)
            equal = _behind(equal, in_more, TILES // MORE, GROUPS * MORE)
        number = _ones(equal)
        keep = want - at_high - (tl.cumsum(number, 0) - number)
        keep = tl.minimum(tl.maximum(keep, 0), number)
        word = word ^ equal
        for _ in range(tl.max(keep, 0)):
            lowest = tl.where(keep > 0, equal & -equal, 0)
            word = word | lowest
            equal = equal ^ lowest
            keep -= 1
    # The scan hands each word on as well, so that a thread goes on with one word or two of them.
    up_to, word = tl.associative_scan((_ones(word), word), 0, _sum_and_last)
    number = _ones(word)
    at = up_to - number + 1
    page = tl.arange(0, 2 * FIRST if MORE > 0 else FIRST) * LANES + 1
    for _ in range(tl.max(number, 0)):
        lowest = word & -word
        chosen = (page + _ones(lowest - 1)).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + at, chosen, mask=word != 0)
        word = word ^ lowest
        at += 1


@triton.jit(do_not_specialize=["count"])
def _choose(
    scores_ptr,
    own_ptr,
    out_ptr,
    pages,
    count,
    TAIL: tl.constexpr,
    GROUPS: tl.constexpr,
    TILES: tl.constexpr,
    MORE: tl.constexpr,
    SOME: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Write the `count` pages of one row: page 0, the best older ones ascending, the tail.

    A shallow row takes smaller tiles: one, or SOME and one.
    """
    row = tl.program_id(0)
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    own = tl.load(own_ptr + row).to(tl.int32)
    out = out_ptr + row.to(tl.int64) * count
    scores = scores_ptr + row.to(tl.int64) * pages
    if own < count:
        for start in range(0, count, BLOCK_OUT):
            i = start + tl.arange(0, BLOCK_OUT)
            tl.store(out + i, i.to(out_ptr.dtype.element_ty), mask=i < count)
    else:
        want = count - 1 - TAIL
        last = own - TAIL
        if TILES == 1:
            _among(scores, out, last, want, GROUPS, 1, 0)
        else:
            if last <= GROUPS * LANES:
                _among(scores, out, last, want, GROUPS, 1, 0)
            elif SOME > 0:
                if last <= (SOME + 1) * GROUPS * LANES:
                    _among(scores, out, last, want, GROUPS, SOME, 1)
                else:
                    _among(scores, out, last, want, GROUPS, TILES, MORE)
            else:
                _among(scores, out, last, want, GROUPS, TILES, MORE)
        tl.store(out, tl.full((), 0, out_ptr.dtype.element_ty))
        for i in tl.static_range(TAIL):
            tail = (own - TAIL + 1 + i).to(out_ptr.dtype.element_ty)
            tl.store(out + count - TAIL + i, tail)


def choose_pages(
    scores: torch.Tensor,
    own_page: torch.Tensor,
    *,
    count: int,
    tail: int,
    out: torch.Tensor,
    warps: int | None = None,
) -> torch.Tensor:
    """Write the pages that `scores` [R, P] choose into `out` [R, M], ascending.

    `warps` a program is chosen by the pages if not given.
    """
    rows, pages = scores.shape
    assert pages <= MAX_FUSED_PAGES
    assert count > tail
    assert scores.is_contiguous()
    assert out.is_contiguous()
    warps = warps or (8 if pages <= MAX_FUSED_PAGES // 2 + 256 else 16)
    tiles, more = _powers(triton.cdiv(max(pages - 1, 1), warps * 32))
    _choose[(rows,)](
        scores,
        own_page,
        out,
        pages,
        count,
        TAIL=tail,
        GROUPS=warps,
        TILES=tiles,
        MORE=more,
        SOME=tiles // 4 if tiles >= 16 else 0,
        BLOCK_OUT=256,
        num_warps=warps,
        **overlapped(scores),
    )
    return out


def _powers(number: int) -> tuple[int, int]:
    """Return two powers of two that together are at least `number`, or one and 0 if as small."""
    whole = triton.next_power_of_2(number)
    if number > 1:
        half = whole // 2
        rest = triton.next_power_of_2(number - half)
        if half + rest < whole:
            return half, rest
    return whole, 0
