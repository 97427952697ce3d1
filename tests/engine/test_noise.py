"""Noise: the published Philox vectors, and nothing but seed and position in it."""

from __future__ import annotations

import math

import pytest
import torch

from strata.noise import gumbel, philox

# Random123 1.14.0, kat_vectors, philox 4x32 10: counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_philox_gives_the_known_answers(counter: str, key: str, result: str) -> None:
    low, high = words(key)
    got = philox([torch.tensor([word]) for word in words(counter)], low | high << 32)
    assert [int(word) for word in got] == words(result)


def test_philox_agrees_with_python_integers() -> None:
    generator = torch.Generator().manual_seed(0)
    counters = torch.randint(0, 2**32, (4, 200), generator=generator)
    for seed in (0, 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0):
        got = torch.stack(philox(list(counters), seed), -1).tolist()
        assert got == [plain_philox(column, seed) for column in counters.T.tolist()]


def plain_philox(counter: list[int], seed: int) -> list[int]:
    c0, c1, c2, c3 = counter
    mask = 0xFFFFFFFF
    k0, k1 = seed & mask, seed >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & mask, (a >> 32) ^ c3 ^ k1, a & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return [c0, c1, c2, c3]


@pytest.mark.parametrize("vocab", [1, 4, 1023, 1024])
def test_noise_depends_on_seed_and_position_only(vocab: int) -> None:
    positions = torch.tensor([5, 0, 131_071, 5, 77])
    together = gumbel(positions, vocab, 9)
    for row, position in zip(together, positions, strict=True):
        assert torch.equal(row, gumbel(position[None], vocab, 9)[0])
    assert torch.equal(together[0], together[3])
    assert torch.equal(together[:, :1], gumbel(positions, 1, 9)), "noise moved with the vocabulary"
    assert not torch.equal(together[0], gumbel(positions[:1], vocab, 10)[0])
    assert not torch.equal(together[0], together[1])


def test_noise_is_finite_and_standard_gumbel() -> None:
    noise = gumbel(torch.arange(100), 4_000, 3).double()
    assert noise.isfinite().all()
    count = noise.numel()
    mean, variance = 0.5772156649, math.pi**2 / 6
    assert abs(float(noise.mean()) - mean) < 6 * (variance / count) ** 0.5
    assert abs(float(noise.var()) - variance) < 0.05
    below = float((noise < 0).double().mean())
    assert abs(below - math.exp(-1)) < 6 * 0.5 / count**0.5
