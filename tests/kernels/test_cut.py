"""Top-k, top-p and min-p in a kernel against the rule in plain torch.

Held: the same tokens where no sum is near its bound, ties included; a row's bits whatever its
company; vocabularies of more than one block; two launches for any cuts.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from strata.config import SamplingParams
from strata.kernels.head import Drawn, draw
from strata.kernels.head.keep import keep_likely
from strata.noise import gumbel
from strata.sampling import Sampler
from tests.kernels.devices import DEVICES, rms_ratio

triton_head = pytest.importorskip("strata.kernels.head.triton")
triton_cut = pytest.importorskip("strata.kernels.head.cut")

CUTS = [
    {"top_k": 1},
    {"top_k": 7},
    {"top_p": 0.9},
    {"top_p": 0.0},
    {"min_p": 0.1},
    {"top_k": 40, "top_p": 0.6},
    {"top_k": 20, "top_p": 0.95, "min_p": 0.05},
]


def run_cut(device: str, logits: torch.Tensor, p: SamplingParams, first: int = 100) -> Any:
    """Return the tokens and shares of `logits` [R, V] at positions from `first` on."""
    rows, vocab = logits.shape
    positions = torch.arange(first, first + rows)
    values = logits.float() / p.temperature + gumbel(positions, vocab, p.seed)
    tokens = torch.full((rows,), -7, device=device)
    shares = torch.full((rows,), float("nan"), device=device)
    triton_cut.cut(
        logits.contiguous().to(device),
        values.to(device),
        torch.tensor([p.top_k, p.top_p, p.min_p], dtype=torch.float64, device=device),
        torch.tensor([p.temperature], device=device),
        tokens,
        shares,
    )
    return tokens.cpu(), shares.cpu()


def far_from_bounds(logits: torch.Tensor, p: SamplingParams) -> bool:
    """Return whether slightly other bounds keep the same tokens, so that rounding cannot matter."""
    scaled = logits.float() / p.temperature
    kept = []
    for by in (1 - 1e-5, 1 + 1e-5):
        top_p = p.top_p * by if 0 < p.top_p < 1 else p.top_p
        kept.append(
            keep_likely(logits, scaled, top_k=p.top_k, top_p=top_p, min_p=min(p.min_p * by, 1.0))
        )
    return torch.equal(*kept)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["random", "ties", "flat"])
def test_a_kernel_draws_what_the_sampler_does(
    device: str, cuts: dict[str, Any], dtype: torch.dtype, kind: str
) -> None:
    checked = 0
    for seed in range(3):
        torch.manual_seed(seed)
        logits = torch.randn(3, 300) * 4
        if kind == "ties":
            logits = logits.round()
        if kind == "flat":
            logits[1:] = torch.tensor([0.0, -0.0]).repeat(150)
        logits = logits.to(dtype)
        p = SamplingParams(temperature=0.8, seed=2**63 + seed, **cuts)
        tokens, shares = run_cut(device, logits, p)
        expected = Sampler(p).pick(logits.float(), torch.arange(100, 103))
        if far_from_bounds(logits, p):
            checked += 1
            assert torch.equal(tokens, expected)
            whole = logits.float().softmax(-1).gather(-1, tokens[:, None])[:, 0]
            assert rms_ratio(shares, whole) < 1e-5
    assert checked


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cuts", [CUTS[1], CUTS[-1]], ids=str)
@pytest.mark.parametrize("vocab", [100, 128, 1_000])
def test_a_vocabulary_of_several_blocks(
    device: str, cuts: dict[str, Any], vocab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(vocab)
    logits = (torch.randn(2, vocab) * 3).bfloat16()
    p = SamplingParams(temperature=1.3, seed=5, **cuts)
    whole = run_cut(device, logits, p)
    monkeypatch.setattr(triton_cut, "MAX_BLOCK", 128)
    cut = run_cut(device, logits, p)
    assert torch.equal(whole[0], cut[0])
    assert rms_ratio(whole[1], cut[1]) < 1e-6


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_does_not_depend_on_the_others(device: str) -> None:
    torch.manual_seed(1)
    logits = (torch.randn(8, 500) * 3).bfloat16()
    p = SamplingParams(temperature=0.9, seed=5, top_k=60, top_p=0.8, min_p=0.01)
    tokens, shares = run_cut(device, logits, p)
    for r in range(8):
        alone = run_cut(device, logits[r : r + 1], p, first=100 + r)
        assert (tokens[r], shares[r]) == (alone[0][0], alone[1][0])


def draw_cut(device: str, cuts: dict[str, Any], vocab: int, hidden: int, rows: int) -> Drawn:
    """Draw from whole numbers, whose logits are exact in any order of summing."""
    torch.manual_seed(vocab)
    x = torch.randint(-1, 2, (rows, hidden)).bfloat16()
    weight = torch.randint(-1, 2, (vocab, hidden)).bfloat16()
    p = SamplingParams(temperature=2.5, top_k=0, **cuts)
    return draw(
        x.to(device),
        None,
        weight.to(device),
        eps=1e-6,
        positions=torch.arange(rows, device=device),
        seed=torch.tensor([11], device=device),
        temperature=torch.tensor([p.temperature], device=device),
        cuts=torch.tensor([p.top_k, p.top_p, p.min_p], dtype=torch.float64, device=device),
    )


def test_a_head_with_cuts_is_two_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("launches are counted where kernels are interpreted")
    from triton.runtime.interpreter import InterpretedFunction

    from strata.kernels import device

    expected = draw_cut("cpu", {"top_p": 0.77}, 200, 32, 3)
    launched: list[str] = []
    real = InterpretedFunction.__getitem__

    def count(self: Any, grid: Any) -> Any:
        launched.append(self.fn.__name__)
        return real(self, grid)

    monkeypatch.setattr(InterpretedFunction, "__getitem__", count)
    monkeypatch.setattr(device, "has_kernels", lambda _: True)
    drawn = draw_cut("cpu", {"top_p": 0.77}, 200, 32, 3)
    assert launched == ["_project", "_cut"]
    assert torch.equal(drawn.tokens, expected.tokens)
    assert rms_ratio(drawn.shares, expected.shares) < 1e-5


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", [8_192, 151_936])
@pytest.mark.parametrize("cuts", [{"top_p": 0.8971}, {"min_p": 0.0313}], ids=str)
def test_the_bundled_sizes_on_the_device(vocab: int, cuts: dict[str, Any]) -> None:
    got, expected = (draw_cut(where, cuts, vocab, 256, 8) for where in ("cuda", "cpu"))
    assert torch.equal(got.tokens.cpu(), expected.tokens)
    assert rms_ratio(got.shares.cpu(), expected.shares) < 1e-4
