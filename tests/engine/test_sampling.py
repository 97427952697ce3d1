"""Sampling against a version in plain Python, and the drafter's absence from its result."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.errors import UsageError
from strata.lm import LanguageModel
from strata.noise import gumbel
from strata.sampling import Sampler
from strata.session import Session, create_session
from tests.conftest import prompt_of


def plain_kept(logits: list[float], p: SamplingParams) -> set[int]:
    """Return the ids that top-k, top-p and min-p leave, in double precision."""
    scaled = [value / p.temperature for value in logits]
    order = sorted(range(len(scaled)), key=lambda i: (-scaled[i], i))
    kept = order
    if 0 < p.top_k < len(order):
        kth = scaled[order[p.top_k - 1]]
        kept = [i for i in order if scaled[i] >= kth]
    if p.top_p < 1:
        probs, total, nucleus = softmax(scaled, kept), 0.0, []
        for value in dict.fromkeys(scaled[i] for i in kept):  # equal ones together
            if nucleus and total >= p.top_p:
                break
            equal = [i for i in kept if scaled[i] == value]
            nucleus += equal
            total += sum(probs[i] for i in equal)
        kept = nucleus
    if p.min_p > 0:
        probs = softmax(scaled, kept)
        floor = p.min_p * max(probs.values())
        kept = [i for i in kept if probs[i] >= floor]
    return set(kept)


def softmax(values: list[float], of: list[int]) -> dict[int, float]:
    top = max(values[i] for i in of)
    weights = {i: math.exp(values[i] - top) for i in of}
    total = math.fsum(weights.values())
    return {i: weight / total for i, weight in weights.items()}


ratios = st.sampled_from([0.0, 0.05, 0.3, 0.77, 0.95, 1.0])
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([1e-5, 0.01, 0.3, 0.8, 1.0, 2.5, 100.0]),
    top_k=st.sampled_from([0, 1, 2, 7, 19, 20, 21]),
    top_p=ratios,
    min_p=ratios,
    seed=st.sampled_from([0, 1, 2**64 - 1]),
)


@settings(max_examples=300, deadline=None)
@given(p=params, seed=st.integers(0, 999), ties=st.booleans())
def test_processing_keeps_what_plain_python_keeps(p: SamplingParams, seed: int, ties: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 20, generator=generator) * 4
    if ties:
        logits = logits.round()
    positions = torch.tensor([4, 5, 900])
    processed = Sampler(p).process(logits)
    picked = Sampler(p).pick(logits, positions)
    noise = gumbel(positions, 20, p.seed)
    for r in range(3):
        kept = {*processed[r].isfinite().nonzero()[:, 0].tolist()}
        expected = plain_kept(logits[r].tolist(), p)
        # A probability that equals a threshold but for rounding may fall on either side.
        assert kept == expected or near_a_threshold(logits[r], p, kept ^ expected)
        assert kept
        assert int(picked[r]) in kept
        best = max(kept, key=lambda i: float(logits[r, i] / p.temperature + noise[r, i]))
        assert int(picked[r]) == best
        alone = Sampler(p).pick(logits[r : r + 1], positions[r : r + 1])
        assert int(alone) == int(picked[r])


def near_a_threshold(row: torch.Tensor, p: SamplingParams, differing: set[int]) -> bool:
    probs = (row.double() / p.temperature).softmax(-1)
    tied = any(
        abs(float(probs[i] / probs[j]) - 1) < 1e-5
        for i in differing
        for j in range(len(row))
        if i != j and probs[j] > 0
    )
    ranked = probs.sort(descending=True).values
    on_edge = bool(((ranked.cumsum(-1) - p.top_p).abs() < 1e-5).any())
    at_floor = bool(((probs / probs.amax() - p.min_p).abs() < 1e-5).any())
    return tied or on_edge or at_floor


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-45, 1e-30, 1e-6])
def test_no_temperature_is_too_small(temperature: float) -> None:
    logits = torch.tensor([[-3.0, 1e4, 9999.0, 0.0]])
    p = SamplingParams(temperature=temperature, top_p=0.9, min_p=0.1)
    assert Sampler(p).pick(logits, torch.tensor([3])).tolist() == [1]


def test_top_p_zero_keeps_the_best() -> None:
    logits = torch.tensor([[0.0, 1.0, 3.0, 2.0]])
    p = SamplingParams(temperature=1.0, top_p=0.0)
    assert [Sampler(p).pick(logits, torch.tensor([at])).item() for at in range(8)] == [2] * 8


def test_tokens_of_equal_logits_stand_or_fall_together() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    for cut in ({"top_k": 2}, {"top_p": 0.5}, {"top_k": 2, "top_p": 0.8, "min_p": 0.3}):
        kept = Sampler(SamplingParams(temperature=1.0, **cut)).process(logits).isfinite()
        assert kept.tolist() == [[False, True, True, True, True, False]], cut


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 1.1},
        {"top_p": float("nan")},
        {"min_p": -1},
        {"top_k": -1},
        {"seed": -1},
        {"seed": 2**64},
        {"max_new": 0},
    ],
)
def test_values_that_mean_nothing_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--"):
        Sampler(SamplingParams(**bad))


PROMPT_CELLS, NEW = 200, 24


@pytest.fixture(scope="module")
def sessions(tiny: LanguageModel) -> dict[int, Session]:
    """Return sessions that differ in everything that must not show, at one prompt."""
    ids = prompt_of(tiny, PROMPT_CELLS, seed=6)
    made = {}
    for drafts, window, resident, page in (
        (0, 0, 0, 16),
        (1, 64, 64, 16),
        (3, 5, 96, 3),
        (7, 0, 64, 1),
    ):
        config = SessionConfig(
            kv=KvConfig(resident_cells=resident, page_cells=page, selection=Selection()),
            spec=SpecConfig(drafts=drafts, window_cells=window),
        )
        session = create_session(tiny, config, prompt_cells=PROMPT_CELLS, max_new=NEW, environ={})
        session.prefill(ids)
        made[drafts] = session
    return made


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    temperature=st.sampled_from([0.0, 0.2, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 5, 200]),
    top_p=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.5]),
    seed=st.integers(0, 2**64 - 1),
)
def test_sampled_tokens_do_not_depend_on_the_drafter(
    sessions: dict[int, Session],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
) -> None:
    p = SamplingParams(
        max_new=NEW,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        ignore_eos=True,
    )
    tokens = {}
    for drafts, session in sessions.items():
        tokens[drafts] = session.generate(p).tokens
        session.rewind()
    assert all(other == tokens[0] for other in tokens.values()), tokens
