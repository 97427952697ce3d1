"""Embedding with its norm, and the drafter's joined input, against plain torch.

Held: values to a tolerance and embeddings to the bit; every value is written and nothing else; a
row's bits whatever its company and however often it is computed; the counter is zero afterwards.
"""

from __future__ import annotations

import pytest
import torch

from strata.kernels.embed import ref
from strata.lm.linear import Linear
from tests.kernels.devices import DEVICES, check_norm, rms_ratio

triton_embed = pytest.importorskip("strata.kernels.embed.triton")

DTYPES = [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)]
SIZES = [(8, 48), (3, 100), (1, 256), (1, 640)]
VOCAB = 37
EPS = 1e-6
NAN = float("nan")


class Case:
    """Rows to embed and to join; embeddings that no token names are NaN."""

    def __init__(self, rows: int, hidden: int, dtype: torch.dtype) -> None:
        torch.manual_seed(rows + hidden)
        self.tokens = torch.randint(VOCAB, (rows,))
        self.tokens[0] = VOCAB - 1
        self.embedding = torch.full((VOCAB, hidden), NAN, dtype=dtype)
        named = self.tokens.unique()
        self.embedding[named] = torch.randn(len(named), hidden).to(dtype)
        self.hidden = torch.randn(rows, hidden).to(dtype)
        self.gains = tuple((1 + 0.1 * torch.randn(hidden)).to(dtype) for _ in range(3))
        self.fc = (torch.randn(hidden, 2 * hidden) / hidden**0.5).to(dtype)

    def embed(self, device: str, rows: slice = slice(None)) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the residual and its norm by the kernel."""
        tokens = self.tokens[rows].to(device)
        shape = (len(tokens), self.hidden.shape[1])
        residual, normed = (
            torch.full(shape, NAN, dtype=self.hidden.dtype, device=device) for _ in range(2)
        )
        triton_embed.embed_rows(
            tokens,
            self.embedding.to(device),
            self.gains[0].to(device),
            eps=EPS,
            residual=residual,
            normed=normed,
        )
        return residual.cpu(), normed.cpu()

    def join(
        self, device: str, rows: slice = slice(None), repeats: int = 1
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return what each of `repeats` launches behind one another gives."""
        tokens, hidden = self.tokens[rows].to(device), self.hidden[rows].to(device)
        embedding, fc = self.embedding.to(device), self.fc.to(device)
        gains = tuple(gain.to(device) for gain in self.gains)
        counter = torch.zeros(len(tokens), dtype=torch.int32, device=device)
        outs = []
        for _ in range(repeats):
            residual, normed = (torch.full_like(hidden, NAN) for _ in range(2))
            triton_embed.join_rows(
                tokens,
                hidden,
                embedding,
                gains,
                fc,
                eps=EPS,
                residual=residual,
                normed=normed,
                counter=counter,
            )
            outs.append((residual, normed))
        assert counter.tolist() == [0] * len(tokens)
        return [(residual.cpu(), normed.cpu()) for residual, normed in outs]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(("rows", "hidden"), SIZES)
def test_embeddings_agree(
    device: str, dtype: torch.dtype, tolerance: float, rows: int, hidden: int
) -> None:
    case = Case(rows, hidden, dtype)
    residual, normed = case.embed(device)
    expected, expected_normed = (torch.empty_like(case.hidden) for _ in range(2))
    ref.embed_rows(
        case.tokens,
        case.embedding,
        case.gains[0],
        eps=EPS,
        residual=expected,
        normed=expected_normed,
    )
    assert torch.equal(residual, expected)
    assert rms_ratio(normed, expected_normed) < tolerance
    for r in range(rows):
        alone = case.embed(device, slice(r, r + 1))
        assert torch.equal(alone[0][0], residual[r])
        assert torch.equal(alone[1][0], normed[r])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize(("rows", "hidden"), SIZES)
def test_joined_rows_agree(
    device: str, dtype: torch.dtype, tolerance: float, rows: int, hidden: int
) -> None:
    case = Case(rows, hidden, dtype)
    [(residual, normed)] = case.join(device)
    expected, expected_normed = (torch.empty_like(case.hidden) for _ in range(2))
    ref.join_rows(
        case.tokens,
        case.hidden,
        case.embedding,
        case.gains,  # type: ignore[arg-type]
        Linear(case.fc),
        eps=EPS,
        residual=expected,
        normed=expected_normed,
    )
    assert rms_ratio(residual, expected) < tolerance
    assert rms_ratio(normed, expected_normed) < tolerance
    check_norm(normed, residual, case.gains[2])


@pytest.mark.parametrize("device", DEVICES)
def test_a_joined_row_does_not_depend_on_the_others(device: str) -> None:
    case = Case(8, 48, torch.bfloat16)
    [(residual, normed)] = case.join(device)
    for rows in (slice(0, 1), slice(7, 8), slice(2, 4)):
        [alone] = case.join(device, rows)
        assert torch.equal(alone[0], residual[rows])
        assert torch.equal(alone[1], normed[rows])
    case.hidden[3] = NAN
    [(broken, _)] = case.join(device)
    assert broken[3].isnan().all()
    assert torch.equal(broken[4:], residual[4:])


@pytest.mark.parametrize("device", DEVICES)
def test_the_norm_may_replace_the_hidden_state(device: str) -> None:
    """The drafter chains on its own output."""
    case = Case(3, 48, torch.bfloat16)
    [(residual, normed)] = case.join(device)
    hidden = case.hidden.to(device, copy=True)
    joined = torch.full_like(hidden, NAN)
    triton_embed.join_rows(
        case.tokens.to(device),
        hidden,
        case.embedding.to(device),
        tuple(gain.to(device) for gain in case.gains),
        case.fc.to(device),
        eps=EPS,
        residual=joined,
        normed=hidden,
        counter=torch.zeros(3, dtype=torch.int32, device=device),
    )
    assert torch.equal(joined.cpu(), residual)
    assert torch.equal(hidden.cpu(), normed)


@pytest.mark.gpu
@pytest.mark.parametrize("hidden", [256, 640, 2_048])
def test_every_launch_gives_the_same_bits(hidden: int) -> None:
    case = Case(8, hidden, torch.bfloat16)
    first, *others = case.join("cuda", repeats=50)
    assert not first[1].isnan().any()
    for other in others:
        assert torch.equal(other[0], first[0])
        assert torch.equal(other[1], first[1])
