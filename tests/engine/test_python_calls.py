"""What a caller in Python can get wrong: it works as it reads, or one sentence says what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from strata.config import SamplingParams, SessionConfig
from strata.errors import OrderError, UsageError
from strata.lm import LanguageModel
from strata.sampling import Sampler
from strata.session import Session, create_session
from tests.conftest import prompt_of

CELLS, NEW = 30, 6
PARAMS = SamplingParams(max_new=NEW, ignore_eos=True)


def open_session(model: LanguageModel) -> Session:
    return create_session(model, SessionConfig(), prompt_cells=CELLS, max_new=NEW, environ={})


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        ([], "the prompt is empty"),
        (np.array([], dtype=np.int64), "the prompt is empty"),
        ([-1], "id -1 at place 0"),
        ([3, 1024], "id 1024 at place 1 .* from 0 to 1023"),
        ([3, 2**70], "at place 1"),
        ([True], "id True"),
        ([1.0], "id 1.0"),
        ([np.float32(2)], "id 2.0"),
        ([np.bool_(True)], "id True"),
        (np.array([1.5]), "id 1.5"),
        (np.array([[1, 2]]), "no token of this model"),
        (torch.tensor([True]), "id True"),
        (torch.tensor(5), "of type Tensor"),
        ([[1]], "no token of this model"),
        ([None], "id None"),
        ("text", "id 't'"),
        (5, "of type int"),
        (None, "of type NoneType"),
        (range(2000, 2003), "id 2000"),
    ],
)
def test_what_is_no_prompt_is_refused(tiny: LanguageModel, ids: Any, sentence: str) -> None:
    with open_session(tiny) as session:
        with pytest.raises(UsageError, match=sentence):
            session.prefill(ids)
        session.prefill([5, 6])  # nothing was written
        assert len(session.generate(PARAMS).tokens) == NEW


def test_ids_of_any_kind_are_the_same_prompt(tiny: LanguageModel) -> None:
    ids = prompt_of(tiny, CELLS)
    found = []
    for kind in (
        list,
        tuple,
        np.array,
        torch.tensor,
        lambda ids: np.array(ids, dtype=np.uint16),
        lambda ids: [np.int32(one) for one in ids],
        lambda ids: list(torch.tensor(ids)),
        lambda ids: (one for one in ids),
    ):
        with open_session(tiny) as session:
            assert session.prefill(kind(ids)).tokens == CELLS
            found.append(session.generate(PARAMS).tokens)
    assert all(tokens == found[0] for tokens in found)


def test_a_block_closes_its_session_and_nothing_works_behind_it(tiny: LanguageModel) -> None:
    with open_session(tiny) as session:
        session.prefill(prompt_of(tiny, CELLS))
        parked = session.park()
    session.close()  # again, which does nothing
    for use in (
        lambda: session.prefill([1]),
        lambda: session.generate(PARAMS),
        lambda: session.restore(parked),
        session.rewind,
        session.park,
        lambda: session.ledger,
        lambda: session.model,
        lambda: session.expert_slots,
    ):
        with pytest.raises(OrderError, match="closed; create another"):
            use()
    with pytest.raises(ZeroDivisionError), open_session(tiny) as session:
        _ = 1 // 0
    with pytest.raises(OrderError, match="closed"):
        session.rewind()


def test_calls_in_the_wrong_order_say_what_comes_first(tiny: LanguageModel) -> None:
    with open_session(tiny) as session:
        for use in (lambda: session.generate(PARAMS), session.rewind, session.park):
            with pytest.raises(OrderError, match="prefill"):
                use()
        session.prefill(prompt_of(tiny, CELLS))
        parked = session.park()
        for again in (lambda: session.prefill([1]), lambda: session.restore(parked)):
            with pytest.raises(OrderError, match="holds 30 cells"):
                again()
        first = session.generate(PARAMS)
        with pytest.raises(OrderError, match="rewind"):
            session.generate(PARAMS)
        with pytest.raises(OrderError, match="rewind"):
            session.park()
        session.rewind()
        assert session.generate(PARAMS).tokens == first.tokens


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"max_new": -1}, "--max-new: -1 is less than 1"),
        ({"max_new": 2.0}, "--max-new: 2.0 is not a whole number"),
        ({"max_new": True}, "--max-new: True is not a whole"),
        ({"max_new": None}, "--max-new: None"),
        ({"top_k": 5.0}, "--top-k: 5.0 is not a whole number"),
        ({"seed": 1.5}, "--seed: 1.5"),
        ({"temperature": "0.5"}, "--temperature: '0.5' is not a number"),
        ({"temperature": True}, "--temperature: True"),
        ({"temperature": -0.5}, "--temperature: -0.5 is outside"),
        ({"temperature": float("nan")}, "--temperature: nan is outside"),
        ({"top_p": None}, "--top-p: None"),
        ({"repeat_penalty": 0}, "--repeat-penalty: 0 is outside 0.01 to 100"),
        ({"repeat_penalty": -1.0}, "--repeat-penalty"),
        ({"repeat_penalty": float("nan")}, "--repeat-penalty: nan"),
        ({"repeat_penalty": float("inf")}, "--repeat-penalty: inf"),
        ({"repeat_last_n": -2}, "--repeat-last-n: -2 is less than -1"),
        ({"repeat_last_n": 64.0}, "--repeat-last-n: 64.0"),
        ({"stop": "end"}, "--stop: 'end' is no tuple of texts"),
        ({"stop": ("",)}, "--stop: an empty text"),
        ({"stop": ("a", 3)}, "--stop: 3 is not a text"),
        ({"stop": None}, "--stop: None"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(
    tiny: LanguageModel, bad: dict[str, Any], sentence: str
) -> None:
    with open_session(tiny) as session:
        session.prefill([5, 6])
        with pytest.raises(UsageError, match=sentence):
            session.generate(SamplingParams(**bad))
        assert len(session.generate(PARAMS).tokens) == NEW


def test_numbers_of_another_library_are_numbers() -> None:
    plain: dict[str, Any] = {"max_new": 4, "temperature": 0.5, "top_k": 3, "seed": 7, "min_p": 0}
    given = {name: np.array(value)[()] for name, value in plain.items()}
    sampler = Sampler(SamplingParams(**given, stop=["a"]))  # type: ignore[arg-type]
    assert sampler.draws_like(Sampler(SamplingParams(**plain)))
    positions = torch.tensor([3])
    logits = torch.randn(1, 50)
    assert sampler.pick(logits, positions) == Sampler(SamplingParams(**plain)).pick(
        logits, positions
    )


@pytest.mark.parametrize(
    "sizes",
    [
        {"prompt_cells": 0, "max_new": 1},
        {"prompt_cells": 5, "max_new": -1},
        {"prompt_cells": 5, "max_new": 0},
        {"prompt_cells": 5.0, "max_new": 1},
        {"prompt_cells": True, "max_new": 1},
        {"prompt_cells": 5, "max_new": None},
    ],
)
def test_sizes_that_mean_nothing_open_no_session(tiny: LanguageModel, sizes: Any) -> None:
    with pytest.raises(UsageError):
        create_session(tiny, SessionConfig(), environ={}, **sizes)
