"""The token of each row behind top-k, top-p and min-p, in one launch; `keep` has the rule.

A program has one row. Nothing is sorted: a threshold between the integers that order as logits do
is found by halving, which takes 16 steps for the logits of a 16-bit model. A step is a count, or a
sum of whole numbers, so no order of adding leaves a trace. The first BLOCK tokens stay in
registers; those of a larger vocabulary are read again at each step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from strata.config import MAX_ROWS
from strata.kernels.head.keep import UNITS
from strata.kernels.head.repeat import Repeat
from strata.kernels.head.repeated import is_repeated, penalised
from strata.kernels.overlap import let_next_begin, overlapped, wait_for_previous

MAX_BLOCK = 8192
WHOLE = tl.constexpr(UNITS)


@triton.jit
def _tile(
    logits_ptr,
    history,
    start,
    vocab,
    SHIFT: tl.constexpr,
    REPEAT: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return tokens from `start` on, their logits, raw and penalised, and integers that order so.

    `history` is what a penalty reads: penalty, last, seen, tokens, their positions, the row's own.
    """
    v = start + tl.arange(0, BLOCK)
    raw = tl.load(logits_ptr + v, mask=v < vocab, other=float("-inf")).to(tl.float32)
    logit = raw
    if REPEAT:
        seen = tl.load(history[2] + v, mask=v < vocab, other=-1)
        last, position = tl.load(history[1]), tl.load(history[5])
        repeated = is_repeated(v, seen, history[3], history[4], position, last, WINDOW)
        logit = penalised(raw, repeated, tl.load(history[0]), BLOCK)
    bits = tl.where(logit == 0, 0.0, logit).to(tl.int32, bitcast=True)  # zeros are equal
    return v, raw, logit, (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT


@triton.jit
def _weights(logit, top, temperature, BLOCK: tl.constexpr):
    """Return each token's probability over that of the best one, whose logit is `top`."""
    over = temperature + tl.zeros((BLOCK,), tl.float32)
    return tl.exp(tl.div_rn(logit, over) - tl.div_rn(top + tl.zeros((BLOCK,), tl.float32), over))


@triton.jit
def _units(logit, image, least, top, temperature, BLOCK: tl.constexpr):
    """Return weights in whole numbers, none below `least`."""
    units = (_weights(logit, top, temperature, BLOCK) * WHOLE).to(tl.int64)
    return tl.where(image >= least, units, 0)


@triton.jit
def _best(
    v, raw, logit, image, values_ptr, vocab, least, floor, top, temperature, BLOCK: tl.constexpr
):
    """Return the best value of the tokens that stay, the lowest that has it, and its raw logit."""
    stays = (v < vocab) & (image >= least)
    stays = stays & (_weights(logit, top, temperature, BLOCK) >= floor)
    value = tl.load(values_ptr + v, mask=stays, other=float("-inf"))
    best = tl.max(value, 0)
    token = tl.min(tl.where(stays & (value == best), v, 0x7FFFFFFF), 0)
    return best, token, tl.max(tl.where(v == token, raw, float("-inf")), 0)


@triton.jit(do_not_specialize_on_alignment=["positions_ptr"])
def _cut(
    logits_ptr,
    values_ptr,
    cuts_ptr,
    temperature_ptr,
    tokens_ptr,
    shares_ptr,
    penalty_ptr,
    last_ptr,
    seen_ptr,
    window_ptr,
    window_at_ptr,
    positions_ptr,
    vocab,
    SHIFT: tl.constexpr,
    REPEAT: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * vocab
    values_ptr += row * vocab
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    top_k = tl.load(cuts_ptr).to(tl.int32)
    top_p = tl.load(cuts_ptr + 1)
    floor = tl.load(cuts_ptr + 2).to(tl.float32)
    temperature = tl.load(temperature_ptr)
    own = positions_ptr + row
    history = (penalty_ptr, last_ptr, seen_ptr, window_ptr, window_at_ptr, own)

    v, raw, logit, image = _tile(logits_ptr, history, 0, vocab, SHIFT, REPEAT, WINDOW, BLOCK)
    top = tl.max(logit, 0)
    raw_top = tl.max(raw, 0)
    most = tl.max(image, 0)
    least = tl.min(tl.where(v < vocab, image, 0x7FFFFFFF), 0)
    for start in range(BLOCK, vocab, BLOCK):
        more_v, more_raw, more, more_image = _tile(
            logits_ptr, history, start, vocab, SHIFT, REPEAT, WINDOW, BLOCK
        )
        top = tl.maximum(top, tl.max(more, 0))
        if REPEAT:
            raw_top = tl.maximum(raw_top, tl.max(more_raw, 0))
        most = tl.maximum(most, tl.max(more_image, 0))
        inside = tl.where(more_v < vocab, more_image, 0x7FFFFFFF)
        least = tl.minimum(least, tl.min(inside, 0))
    if not REPEAT:
        raw_top = top
    most = most.to(tl.int64)
    least = least.to(tl.int64)

    if (top_k > 0) & (top_k < vocab):
        # The largest integer that at least k tokens reach.
        high = most + 1
        while high - least > 1:
            middle = least + ((high - least) >> 1)
            limit = middle.to(tl.int32)
            count = tl.sum(((image >= limit) & (v < vocab)).to(tl.int32), 0)
            for start in range(BLOCK, vocab, BLOCK):
                more_v, _, more, more_image = _tile(
                    logits_ptr, history, start, vocab, SHIFT, REPEAT, WINDOW, BLOCK
                )
                reached = (more_image >= limit) & (more_v < vocab)
                count += tl.sum(reached.to(tl.int32), 0)
            up = count >= top_k
            least = tl.where(up, middle, least)
            high = tl.where(up, high, middle)
    if top_p < 1:
        # The least integer above which less than p lies.
        units = _units(logit, image, least, top, temperature, BLOCK)
        total = tl.sum(units, 0)
        for start in range(BLOCK, vocab, BLOCK):
            more_v, _, more, more_image = _tile(
                logits_ptr, history, start, vocab, SHIFT, REPEAT, WINDOW, BLOCK
            )
            total += tl.sum(_units(more, more_image, least, top, temperature, BLOCK), 0)
        bound = top_p * total.to(tl.float64)
        below = least - 1
        kept = most
        while kept - below > 1:
            middle = below + ((kept - below) >> 1)
            limit = middle.to(tl.int32)
            above = tl.sum(tl.where(image > limit, units, 0), 0)
            for start in range(BLOCK, vocab, BLOCK):
                more_v, _, more, more_image = _tile(
                    logits_ptr, history, start, vocab, SHIFT, REPEAT, WINDOW, BLOCK
                )
                others = _units(more, more_image, least, top, temperature, BLOCK)
                above += tl.sum(tl.where(more_image > limit, others, 0), 0)
            little = above.to(tl.float64) < bound
            kept = tl.where(little, middle, kept)
            below = tl.where(little, below, middle)
        least = kept

    best, token, its_raw = _best(
        v, raw, logit, image, values_ptr, vocab, least, floor, top, temperature, BLOCK
    )
    total = tl.sum(tl.exp(raw - raw_top), 0)
    for start in range(BLOCK, vocab, BLOCK):
        v, more_raw, logit, image = _tile(
            logits_ptr, history, start, vocab, SHIFT, REPEAT, WINDOW, BLOCK
        )
        here, first, first_raw = _best(
            v, more_raw, logit, image, values_ptr, vocab, least, floor, top, temperature, BLOCK
        )
        better = here > best
        token = tl.where(better, first, token)
        its_raw = tl.where(better, first_raw, its_raw)
        best = tl.where(better, here, best)
        total += tl.sum(tl.exp(more_raw - raw_top), 0)
    # Where every score is NaN none is the best; token 0 at least has an embedding.
    token = tl.where(token < 0x7FFFFFFF, token, 0)
    tl.store(tokens_ptr + row, token.to(tl.int64))
    tl.store(shares_ptr + row, tl.exp(its_raw - raw_top) / total)


def cut(
    logits: torch.Tensor,
    values: torch.Tensor,
    cuts: torch.Tensor,
    temperature: torch.Tensor,
    tokens: torch.Tensor,
    shares: torch.Tensor,
    positions: torch.Tensor | None = None,
    repeat: Repeat | None = None,
) -> None:
    """Write the token with the largest of `values` [R, V] that the cuts of `logits` [R, V] leave.

    With `repeat` rows stand at `positions` [R], `values` are of penalised logits, and so are cuts.
    `cuts` [3] float64 are top-k, top-p and min-p. `tokens` [R] and `shares` [R], the token's share
    of the softmax of the logits, are the output.
    """
    rows, vocab = logits.shape
    assert logits.is_contiguous()
    assert values.is_contiguous()
    block = min(triton.next_power_of_2(vocab), MAX_BLOCK)
    history: tuple[torch.Tensor, ...] = (cuts,) * 6
    if repeat is not None:
        assert positions is not None
        tensors = (repeat.penalty, repeat.last, repeat.seen, repeat.tokens, repeat.positions)
        history = (*tensors, positions)
    _cut[(rows,)](
        logits,
        values,
        cuts,
        temperature,
        tokens,
        shares,
        *history,
        vocab,
        # A penalised logit has all its bits.
        SHIFT=16 if logits.dtype == torch.bfloat16 and repeat is None else 0,
        REPEAT=repeat is not None,
        WINDOW=MAX_ROWS,
        BLOCK=block,
        num_warps=max(1, min(block // 256, 32)),
        **overlapped(logits),
    )
