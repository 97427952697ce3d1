"""The head against its reference: the same integers, the same draws."""

from __future__ import annotations

import pytest
import torch

from strata.kernels.head import Drawn, draw
from strata.noise import gumbel, philox
from tests.kernels.devices import DEVICES, rms_ratio

triton_head = pytest.importorskip("strata.kernels.head.triton")

SEEDS = [0, 7, 2**32 - 1, 2**32, 2**63 + 12345, 2**64 - 1]


def as_int64(seed: int, device: str) -> torch.Tensor:
    return torch.tensor([seed - 2**64 if seed >= 2**63 else seed], device=device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", SEEDS)
def test_noise_is_the_reference_bit_for_bit(device: str, seed: int) -> None:
    positions = torch.tensor([0, 1, 131_071, 2**31 - 1])
    vocab = 37
    words = triton_head.noise(positions.to(device), vocab, as_int64(seed, device), words=True)
    blocks = torch.arange(-(-vocab // 4)).expand(4, -1)
    zero = torch.zeros_like(blocks)
    counter = [blocks, positions[:, None].expand_as(blocks), zero, zero]
    expected = torch.stack(philox(counter, seed), -1).flatten(1)[:, :vocab]
    assert torch.equal(words.cpu(), expected)
    noise = triton_head.noise(positions.to(device), vocab, as_int64(seed, device)).cpu()
    # Logarithms of two libraries may round the last bit of a float64 differently.
    torch.testing.assert_close(noise, gumbel(positions, vocab, seed), rtol=2e-7, atol=1e-7)


class Case:
    """Rows and a head whose logits are exact in any order of summing, or random."""

    def __init__(self, rows: int, hidden: int, vocab: int, dtype: torch.dtype, exact: bool) -> None:
        torch.manual_seed(rows + hidden + vocab)
        if exact:
            self.x = torch.randint(-1, 2, (rows, hidden)).to(dtype)
            self.weight = torch.randint(-1, 2, (vocab, hidden)).to(dtype)
            self.norm = None
        else:
            self.x = torch.randn(rows, hidden).to(dtype)
            self.weight = (torch.randn(vocab, hidden) / hidden**0.5).to(dtype)
            self.norm = (1 + 0.1 * torch.randn(hidden)).to(dtype)
        self.positions = torch.arange(1000, 1000 + rows)

    def draw(
        self, device: str, *, seed: int | None, rows: slice = slice(None), logits: bool = True
    ) -> Drawn:
        x, positions = self.x[rows].to(device), self.positions[rows].to(device)
        weight = self.weight.to(device)
        count, (vocab, hidden) = len(x), weight.shape
        nan = float("nan")
        out = Drawn(
            tokens=torch.full((count,), -7, device=device),
            shares=torch.full((count,), nan, device=device),
            hidden=torch.full_like(x, nan) if self.norm is not None else x,
            logits=torch.full((count, vocab), nan, device=device) if logits else None,
        )
        blocks = triton_head.block_count(vocab, hidden)
        triton_head.draw(
            x,
            None if self.norm is None else self.norm.to(device),
            weight,
            eps=1e-6,
            positions=positions,
            seed=None if seed is None else as_int64(seed, device),
            temperature=None if seed is None else torch.tensor([0.8], device=device),
            with_logits=logits,
            out=out,
            parts=torch.full((5, count, blocks), nan, device=device),
        )
        return out

    def expected(self, seed: int | None) -> Drawn:
        return draw(  # a CPU takes the reference
            self.x,
            self.norm,
            self.weight,
            eps=1e-6,
            positions=self.positions,
            seed=None if seed is None else as_int64(seed, "cpu"),
            temperature=None if seed is None else torch.tensor([0.8]),
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", [None, 2**63 + 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "hidden", "vocab"), [(1, 64, 100), (4, 48, 63), (2, 300, 33)])
def test_equal_logits_draw_equal_tokens(
    device: str, seed: int | None, dtype: torch.dtype, rows: int, hidden: int, vocab: int
) -> None:
    """Small integers: logits are exact, and their ties go to the lowest token."""
    case = Case(rows, hidden, vocab, dtype, exact=True)
    got, expected = case.draw(device, seed=seed), case.expected(seed)
    assert got.logits is not None
    assert expected.logits is not None
    assert torch.equal(got.logits.cpu(), expected.logits)
    if seed is None:
        first = (expected.logits == expected.logits.amax(-1, keepdim=True)).int().argmax(-1)
        assert torch.equal(got.tokens.cpu(), first)
    assert torch.equal(got.tokens.cpu(), expected.tokens)
    assert rms_ratio(got.shares.cpu(), expected.shares) < 1e-5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_norm_and_logits_agree(device: str, dtype: torch.dtype, tolerance: float) -> None:
    case = Case(3, 100, 70, dtype, exact=False)
    got, expected = case.draw(device, seed=None), case.expected(None)
    assert got.logits is not None
    assert expected.logits is not None
    assert rms_ratio(got.hidden.cpu(), expected.hidden) < tolerance
    assert rms_ratio(got.logits.cpu(), expected.logits) < tolerance
    assert torch.equal(got.tokens.cpu(), got.logits.argmax(-1).cpu())
    shares = got.logits.softmax(-1).gather(-1, got.tokens[:, None])[:, 0]
    assert rms_ratio(got.shares, shares) < 1e-5
    without = case.draw(device, seed=None, logits=False)
    assert torch.equal(without.tokens, got.tokens)


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_does_not_depend_on_the_others(device: str) -> None:
    case = Case(8, 64, 65, torch.bfloat16, exact=False)
    together = case.draw(device, seed=3)
    for r in range(8):
        alone = case.draw(device, seed=3, rows=slice(r, r + 1))
        assert alone.logits is not None
        assert together.logits is not None
        assert torch.equal(alone.logits[0], together.logits[r])
        assert torch.equal(alone.hidden[0], together.hidden[r])
        assert alone.tokens[0] == together.tokens[r]
        assert alone.shares[0] == together.shares[r]


@pytest.mark.gpu
@pytest.mark.parametrize(("hidden", "vocab"), [(256, 8_192), (2_048, 32_003)])
@pytest.mark.parametrize("seed", [None, 11])
def test_the_bundled_sizes_on_the_device(hidden: int, vocab: int, seed: int | None) -> None:
    case = Case(8, hidden, vocab, torch.bfloat16, exact=True)
    got, expected = case.draw("cuda", seed=seed), case.expected(seed)
    assert got.logits is not None
    assert expected.logits is not None
    assert torch.equal(got.logits.cpu(), expected.logits)
    assert torch.equal(got.tokens.cpu(), expected.tokens)
    assert rms_ratio(got.shares.cpu(), expected.shares) < 1e-4
    alone = case.draw("cuda", seed=seed, rows=slice(5, 6))
    assert alone.tokens[0] == got.tokens[5]


@pytest.mark.gpu
def test_a_captured_draw_reads_its_seed_and_positions_at_replay() -> None:
    case = Case(2, 256, 8_192, torch.bfloat16, exact=True)
    x, weight = case.x.cuda(), case.weight.cuda()
    positions, seed = case.positions.cuda(), as_int64(0, "cuda")
    temperature = torch.tensor([0.8], device="cuda")

    def launch(out: Drawn | None = None) -> Drawn:
        return triton_head.draw(
            x,
            None,
            weight,
            eps=1e-6,
            positions=positions,
            seed=seed,
            temperature=temperature,
            with_logits=True,
            out=out,
        )

    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawn = launch()
    for step in range(5):
        seed.fill_(step - 2)
        positions.fill_(step * 1000)
        drawn.tokens.fill_(-7)
        graph.replay()
        assert torch.equal(drawn.tokens, launch().tokens)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("device", DEVICES)
def test_scores_that_are_all_nan_draw_a_token_that_exists(device: str) -> None:
    case = Case(rows=2, hidden=32, vocab=50, dtype=torch.float32, exact=False)
    case.x[1] = float("nan")
    drawn = case.draw(device, seed=None)
    assert 0 <= int(drawn.tokens[1]) < 50
