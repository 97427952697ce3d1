"""Final norm, logits and the drawn token in two launches; the noise of a draw by itself in one.

Shapes: R rows, H hidden, V vocabulary, B blocks of it. A program holds its block of the head's
weights and goes through the rows, so weights are read once; a row's bits do not depend on how
many rows there are, because the number is an argument of one and the same program.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from strata.config import MAX_ROWS
from strata.kernels.device import on_device_of
from strata.kernels.head.cut import cut
from strata.kernels.head.drawn import Drawn, block_count, block_vocab
from strata.kernels.head.repeat import Repeat
from strata.kernels.head.repeated import is_repeated, penalised
from strata.kernels.overlap import let_next_begin, overlapped, wait_for_previous

MOST_AT_ONCE = 4_096
"""Blocks of the vocabulary that are compared side by side: a large one has tens of thousands."""


@triton.jit
def _noise_word(v, position, seed):
    """Return word v mod 4 of Philox4x32-10 at counter (v // 4, position, 0, 0)."""
    counter = (v // 4).to(tl.uint32)
    zero = counter * 0
    w0, w1, w2, w3 = tl.philox(seed, counter, zero + position.to(tl.uint32), zero, zero)
    which = v % 4
    return tl.where(which < 2, tl.where(which == 0, w0, w1), tl.where(which == 2, w2, w3))


@triton.jit
def _gumbel(v, position, seed):
    """Return standard Gumbel noise: minus the log of minus the log, in float64, then rounded."""
    word = _noise_word(v, position, seed)
    uniform = (word.to(tl.float64) + 0.5) * 2.3283064365386963e-10  # 2^-32
    return (-tl.log(-tl.log(uniform))).to(tl.float32)


@triton.jit
def _noise(positions_ptr, seed_ptr, out_ptr, vocab, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the noise of one row, or the words that it is made of."""
    row = tl.program_id(1).to(tl.int64)
    v = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    position = tl.load(positions_ptr + row)
    seed = tl.load(seed_ptr)
    out_ptr += row * vocab
    if WORDS:
        tl.store(out_ptr + v, _noise_word(v, position, seed).to(tl.int64), mask=v < vocab)
    else:
        tl.store(out_ptr + v, _gumbel(v, position, seed), mask=v < vocab)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["positions_ptr"])
def _project(
    x_ptr,
    norm_ptr,
    weight_ptr,
    positions_ptr,
    seed_ptr,
    temperature_ptr,
    penalty_ptr,
    last_ptr,
    seen_ptr,
    window_ptr,
    window_at_ptr,
    hidden_ptr,
    logits_ptr,
    values_ptr,
    value_ptr,
    index_ptr,
    raw_ptr,
    top_ptr,
    sum_ptr,
    rows,
    vocab,
    eps,
    HIDDEN: tl.constexpr,
    NORM: tl.constexpr,
    SAMPLE: tl.constexpr,
    LOGITS: tl.constexpr,
    VALUES: tl.constexpr,
    REPEAT: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_VOCAB: tl.constexpr,
    BLOCK_HIDDEN: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Write each row's best value in one block of the vocabulary, and its part of the softmax."""
    let_next_begin(OVERLAP)
    block = tl.program_id(0)
    blocks = tl.num_programs(0)
    v = block * BLOCK_VOCAB + tl.arange(0, BLOCK_VOCAB)
    h = tl.arange(0, BLOCK_HIDDEN)
    inside = v < vocab
    mask = inside[:, None] & (h < HIDDEN)[None, :]
    at_weight = v.to(tl.int64)[:, None] * HIDDEN + h[None, :]
    weight = tl.load(weight_ptr + at_weight, mask=mask, other=0.0).to(tl.float32)
    if NORM:
        gain = tl.load(norm_ptr + h, mask=h < HIDDEN, other=0.0).to(tl.float32)
    wait_for_previous(OVERLAP)
    if SAMPLE:
        seed = tl.load(seed_ptr)
        temperature = tl.load(temperature_ptr)
    if REPEAT:
        penalty = tl.load(penalty_ptr)
        last = tl.load(last_ptr)
        seen = tl.load(seen_ptr + v, mask=inside, other=-1)
    for row in range(rows):
        x = tl.load(x_ptr + row * HIDDEN + h, mask=h < HIDDEN, other=0.0).to(tl.float32)
        if NORM:
            x = x * tl.rsqrt(tl.sum(x * x, 0) / HIDDEN + eps) * gain
            normed = x.to(hidden_ptr.dtype.element_ty)
            written = tl.where(block == 0, HIDDEN, 0)
            tl.store(hidden_ptr + row * HIDDEN + h, normed, mask=h < written)
            x = normed.to(tl.float32)
        # Rounded as a product of the model's type is, then widened again.
        logit = tl.sum(weight * x[None, :], 1).to(weight_ptr.dtype.element_ty).to(tl.float32)
        if LOGITS:
            tl.store(logits_ptr + row * vocab + v, logit, mask=inside)
        logit = tl.where(inside, logit, float("-inf"))
        value = logit
        if SAMPLE or REPEAT:
            position = tl.load(positions_ptr + row)
        if REPEAT:
            repeated = is_repeated(v, seen, window_ptr, window_at_ptr, position, last, WINDOW)
            value = penalised(logit, repeated, penalty, BLOCK_VOCAB)
        if SAMPLE:
            value = tl.div_rn(value, temperature + tl.zeros((BLOCK_VOCAB,), tl.float32))
            value += _gumbel(v, position, seed)
        if VALUES:
            tl.store(values_ptr + row * vocab + v, value, mask=inside)
        best = tl.max(value, 0)
        index = tl.min(tl.where(value == best, v, 0x7FFFFFFF), 0)
        top = tl.max(logit, 0)
        place = row * blocks + block
        tl.store(value_ptr + place, best)
        tl.store(index_ptr + place, index)
        tl.store(raw_ptr + place, tl.max(tl.where(v == index, logit, float("-inf")), 0))
        tl.store(top_ptr + place, top)
        tl.store(sum_ptr + place, tl.sum(tl.exp(logit - top), 0))


@triton.jit(do_not_specialize_on_alignment=["tokens_ptr"])
def _pick(
    value_ptr,
    index_ptr,
    raw_ptr,
    top_ptr,
    sum_ptr,
    tokens_ptr,
    shares_ptr,
    blocks,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Write one row's token, the lowest of equal ones, and its share of the softmax."""
    let_next_begin(OVERLAP)
    wait_for_previous(OVERLAP)
    row = tl.program_id(0)
    best = tl.full((), float("-inf"), tl.float32)
    raw = best
    top = best
    total = tl.full((), 0.0, tl.float32)
    token = tl.full((), 0x7FFFFFFF, tl.int32)
    for start in range(0, blocks, BLOCK):
        i = start + tl.arange(0, BLOCK)
        at = row * blocks + i
        inside = i < blocks
        value = tl.load(value_ptr + at, mask=inside, other=float("-inf"))
        index = tl.load(index_ptr + at, mask=inside, other=0x7FFFFFFF)
        raws = tl.load(raw_ptr + at, mask=inside, other=float("-inf"))
        tops = tl.load(top_ptr + at, mask=inside, other=float("-inf"))
        sums = tl.load(sum_ptr + at, mask=inside, other=0.0)
        here = tl.max(value, 0)
        first = tl.min(tl.where(value == here, index, 0x7FFFFFFF), 0)
        its_raw = tl.max(tl.where(index == first, raws, float("-inf")), 0)
        better = here > best
        token = tl.where(better, first, token)
        raw = tl.where(better, its_raw, raw)
        best = tl.where(better, here, best)
        new_top = tl.maximum(top, tl.max(tops, 0))
        total = total * tl.exp(top - new_top) + tl.sum(sums * tl.exp(tops - new_top), 0)
        top = new_top
    # Where every score is NaN none is the best; token 0 at least has an embedding.
    token = tl.where(token < 0x7FFFFFFF, token, 0)
    tl.store(tokens_ptr + row, token.to(tl.int64))
    tl.store(shares_ptr + row, tl.exp(raw - top) / total)


def draw(
    x: torch.Tensor,
    norm: torch.Tensor | None,
    weight: torch.Tensor,
    *,
    eps: float,
    positions: torch.Tensor | None,
    seed: torch.Tensor | None,
    temperature: torch.Tensor | None,
    with_logits: bool,
    tokens: torch.Tensor | None = None,
    shares: torch.Tensor | None = None,
    parts: torch.Tensor | None = None,
    cuts: torch.Tensor | None = None,
    scores: tuple[torch.Tensor, torch.Tensor] | None = None,
    repeat: Repeat | None = None,
    out: Drawn | None = None,
) -> Drawn:
    """Return the tokens drawn behind rows `x` [R, H]; see the package for the contract."""
    (rows, hidden), vocab = x.shape, len(weight)
    assert weight.is_contiguous()
    x = x.contiguous()
    blocks = block_count(vocab, hidden)
    if scores is None and cuts is not None:
        scores = (
            torch.empty(rows, vocab, dtype=weight.dtype, device=x.device),
            torch.empty(rows, vocab, dtype=torch.float32, device=x.device),
        )
    if out is None:
        logits = torch.empty(rows, vocab, device=x.device) if with_logits else None
        if tokens is None:
            tokens = torch.empty(rows, dtype=torch.int64, device=x.device)
        out = Drawn(
            tokens=tokens,
            shares=torch.empty(rows, device=x.device) if shares is None else shares,
            hidden=x if norm is None else torch.empty_like(x),
            logits=logits,
        )
    if parts is None:
        parts = torch.empty(5, rows, blocks, dtype=torch.float32, device=x.device)
    best = (parts[0], parts[1].view(torch.int32), *parts[2:])
    sample = seed is not None and temperature is not None and positions is not None
    assert repeat is None or positions is not None, "a penalty needs to know where rows stand"
    history = (parts,) * 5
    if repeat is not None:
        history = (repeat.penalty, repeat.last, repeat.seen, repeat.tokens, repeat.positions)
    logits, values = (out.logits, None) if cuts is None or scores is None else scores
    with on_device_of(x):
        _project[(blocks,)](
            x,
            x if norm is None else norm,
            weight,
            positions if sample or repeat is not None else parts,
            seed if sample else parts,
            temperature if sample else parts,
            *history,
            out.hidden,
            parts if logits is None else logits,
            parts if values is None else values,
            *best,
            rows,
            vocab,
            eps,
            HIDDEN=hidden,
            NORM=norm is not None,
            SAMPLE=sample,
            LOGITS=logits is not None,
            VALUES=values is not None,
            REPEAT=repeat is not None,
            WINDOW=MAX_ROWS,
            BLOCK_VOCAB=block_vocab(hidden),
            BLOCK_HIDDEN=max(triton.next_power_of_2(hidden), 16),
            num_warps=4,
            **overlapped(x),
        )
        if cuts is not None and temperature is not None:
            assert logits is not None
            assert values is not None
            at = positions if repeat is not None else None
            cut(logits, values, cuts, temperature, out.tokens, out.shares, at, repeat)
        else:
            _pick[(rows,)](
                *best,
                out.tokens,
                out.shares,
                blocks,
                BLOCK=min(max(256, triton.next_power_of_2(blocks)), MOST_AT_ONCE),
                num_warps=4 if blocks <= 256 else 16,
                **overlapped(x),
            )
    return out


def noise(
    positions: torch.Tensor, vocab: int, seed: torch.Tensor, *, words: bool = False
) -> torch.Tensor:
    """Return `strata.noise.gumbel` of `positions` [R] as [R, V]; with `words` its integers."""
    dtype = torch.int64 if words else torch.float32
    out = torch.empty(len(positions), vocab, dtype=dtype, device=positions.device)
    with on_device_of(positions):
        _noise[(triton.cdiv(vocab, 512), len(positions))](
            positions, seed, out, vocab, WORDS=words, BLOCK=512, num_warps=4
        )
    return out
