"""The penalty of seen tokens: what counts as seen, and the kernels against the rule in plain torch.

Held: a row sees the last tokens before it, drafts ahead of it among them, and nothing later; the
same tokens as the sampler of the plain engine, which reads a list; a row's bits whatever its
company; what a window gave is seen behind it, what was refused is not.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.config import MAX_ROWS, NOT_FINITE, SamplingParams
from strata.kernels.accept import Board, ref
from strata.kernels.head import Repeat
from strata.sampling import Sampler
from tests.kernels.devices import DEVICES, rms_ratio

triton_head = pytest.importorskip("strata.kernels.head.triton")
triton_accept = pytest.importorskip("strata.kernels.accept.triton")

VOCAB, HIDDEN, ROWS = 70, 32, 4
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 2**63 + 5}
HOW: list[dict[str, Any]] = [
    {},
    SAMPLED,
    {**SAMPLED, "top_k": 20},
    {**SAMPLED, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
]


def seen_by(known: list[int], device: str) -> torch.Tensor:
    """Return where each token of a sequence from position 0 on was last seen."""
    seen = torch.full((VOCAB,), -1, dtype=torch.int32)
    for at, token in enumerate(known):
        seen[token] = at
    return seen.to(device)


def repeat_of(known: list[int], drafts: list[int], sampler: Sampler, device: str) -> Repeat:
    """Return the history behind `known`, whose last token and `drafts` are a window."""
    assert sampler.repeat is not None
    penalty, last = sampler.repeat
    board = Board.empty(torch.device(device))
    board.start(len(known) - 1, known[-1], 4)
    board.tokens[1:] = known[0]  # what an earlier window left there
    board.tokens[1 : len(drafts) + 1] = torch.tensor(drafts, dtype=torch.long)
    return Repeat(
        penalty=torch.tensor([penalty], device=device),
        last=torch.tensor([last], device=device),
        seen=seen_by(known, device),
        tokens=board.tokens,
        positions=board.positions,
    )


tokens = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40)


@given(known=tokens, drafts=st.lists(st.integers(0, 5), max_size=7), last=st.integers(-1, 45))
def test_a_row_sees_what_stands_before_it(known: list[int], drafts: list[int], last: int) -> None:
    sampler = Sampler(SamplingParams(repeat_penalty=2.0, repeat_last_n=last or -1))
    repeat = repeat_of(known, drafts, sampler, "cpu")
    positions = torch.arange(len(known), len(known) + len(drafts) + 1)
    whole = known + drafts
    count = last if last > 0 else len(whole)
    for row, position in zip(repeat.repeated(positions), positions.tolist(), strict=True):
        assert {*row.nonzero()[:, 0].tolist()} == {*whole[max(0, position - count) : position]}


def draw_rows(
    device: str, params: SamplingParams, known: list[int], drafts: list[int], rows: slice
) -> Any:
    """Draw behind a window of whole numbers, whose logits are exact in any order of summing."""
    torch.manual_seed(3)
    x = torch.randint(-1, 2, (ROWS, HIDDEN)).bfloat16()[rows]
    weight = torch.randint(-1, 2, (VOCAB, HIDDEN)).bfloat16()
    sampler = Sampler(params)
    sample: dict[str, Any] = {"seed": None, "temperature": None}
    if not sampler.greedy:
        sample = {
            "seed": torch.tensor([params.seed - 2**64], device=device),
            "temperature": torch.tensor([params.temperature], device=device),
        }
        if params.top_k:
            cuts = [params.top_k, params.top_p, params.min_p]
            sample["cuts"] = torch.tensor(cuts, dtype=torch.float64, device=device)
    positions = torch.arange(len(known), len(known) + ROWS)[rows]
    drawn = triton_head.draw(
        x.to(device),
        None,
        weight.to(device),
        eps=1e-6,
        positions=positions.to(device),
        with_logits=True,
        repeat=repeat_of(known, drafts, sampler, device),
        **sample,
    )
    logits = (x.float() @ weight.float().T).bfloat16().float()
    expected = sampler.pick(logits, positions, known + drafts)
    shares = logits.softmax(-1).gather(-1, expected[:, None])[:, 0]
    return drawn, expected, shares


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", HOW, ids=["greedy", "sampled", "top-k", "cuts"])
@pytest.mark.parametrize(("penalty", "last"), [(1.7, -1), (0.6, 9), (1.3, 1)])
def test_a_kernel_draws_what_the_sampler_does(
    device: str, how: dict[str, Any], penalty: float, last: int
) -> None:
    known = torch.randint(VOCAB, (30,), generator=torch.Generator().manual_seed(1)).tolist()
    drafts = [known[4], 11, 60]
    params = SamplingParams(repeat_penalty=penalty, repeat_last_n=last, **how)
    drawn, expected, shares = draw_rows(device, params, known, drafts, slice(None))
    assert drawn.tokens.tolist() == expected.tolist()
    assert rms_ratio(drawn.shares.cpu(), shares) < 1e-5
    alone, _, _ = draw_rows(device, params, known, drafts, slice(2, 3))
    assert (alone.tokens[0], alone.shares[0]) == (drawn.tokens[2], drawn.shares[2])


@pytest.mark.parametrize("device", DEVICES)
def test_a_vocabulary_of_several_blocks(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(repeat_penalty=1.7, repeat_last_n=20, **HOW[2])
    known = list(range(40, 10, -1))
    whole, expected, _ = draw_rows(device, params, known, [3, 4, 5], slice(None))
    monkeypatch.setattr("strata.kernels.head.cut.MAX_BLOCK", 64)
    parts, _, _ = draw_rows(device, params, known, [3, 4, 5], slice(None))
    assert whole.tokens.tolist() == parts.tokens.tolist() == expected.tolist()
    assert rms_ratio(parts.shares, whole.shares) < 1e-6


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=20)
@given(
    known=tokens,
    targets=st.lists(st.integers(0, 3), min_size=MAX_ROWS, max_size=MAX_ROWS),
    held=st.integers(0, MAX_ROWS - 1),
)
def test_what_a_window_gave_is_seen_behind_it(
    device: str, known: list[int], targets: list[int], held: int
) -> None:
    for run, where in ((triton_accept, device), (ref, "cpu")):
        board = Board.empty(torch.device(where))
        board.start(len(known) - 1, known[-1], 4)
        board.targets.copy_(torch.tensor(targets))
        board.tokens[1:] = board.targets[:-1]
        board.limit.fill_(held)
        seen = seen_by(known, where)
        shares = torch.ones(MAX_ROWS, device=where)
        run.accept(board, rows=MAX_ROWS, page_cells=4, shares=shares)
        run.remember(board, seen)
        assert torch.equal(seen.cpu(), seen_by(known + targets[: held + 1], "cpu"))


@pytest.mark.parametrize("device", DEVICES)
def test_a_target_of_no_finite_logits_is_told_to_the_host(device: str) -> None:
    for run, where in ((triton_accept, device), (ref, "cpu")):
        board = Board.empty(torch.device(where))
        board.start(30, 7, 4)
        board.targets.copy_(torch.arange(50, 50 + MAX_ROWS))
        shares = torch.tensor([0.5, float("nan"), 0.0, 1.0], device=where)
        run.accept(board, rows=4, page_cells=4, shares=shares)
        if device == "cuda":
            torch.cuda.synchronize()
        assert board.result[0, :4].tolist() == [50, NOT_FINITE, 52, 53]
        assert board.targets.tolist() == list(range(50, 50 + MAX_ROWS)), "each has an embedding"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", [HOW[0], HOW[1], HOW[3]], ids=["greedy", "sampled", "cuts"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_share_is_nan_where_no_token_can_be_drawn(
    device: str, how: dict[str, Any], bad: float
) -> None:
    """One row whole, one weight, or nothing; infinity downwards only where nothing is above it."""
    params = SamplingParams(**how)
    cuts = None
    if params.top_k:
        cuts = torch.tensor([40, 0.9, 0.01], dtype=torch.float64, device=device)
    for hidden, entry in ((False, False), (True, False), (False, True)):
        x = torch.ones(2, HIDDEN)
        weight = torch.linspace(0.1, 0.2, VOCAB)[:, None].repeat(1, HIDDEN)
        if hidden:
            x[1] = bad
        if entry:
            weight[33, 5] = bad
        drawn = triton_head.draw(
            x.to(device),
            None,
            weight.to(device),
            eps=1e-6,
            positions=torch.arange(2, device=device),
            seed=None if not how else torch.tensor([5], device=device),
            temperature=None if not how else torch.tensor([0.8], device=device),
            with_logits=False,
            cuts=cuts,
        )
        finite = (x @ weight.T).amax(-1).isfinite()
        assert drawn.shares.isfinite().tolist() == finite.tolist()
        assert all(0 <= token < VOCAB for token in drawn.tokens.tolist())
