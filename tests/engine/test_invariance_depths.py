"""Ring invariance on a GPU at 1K, 32K and 128K, bit for bit in bfloat16.

A passage's prompt runs once a depth and is restored by every session. Tokens, greedy and sampled,
do not depend on ring, victims, budget, prefetch, drafts, W, or on graphs; the hidden states behind
the final norm, and so the logits, are the same bits wherever the rows of a window are the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from strata.captured.tokens import TokenDraw
from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.errors import BudgetError
from strata.lm import LanguageModel, bundled_model_path, load_model
from strata.parked import Parked
from strata.passages import load_passage
from strata.session import Session, create_session

pytestmark = pytest.mark.gpu


NEW = 96
MIB = 1 << 20
PARAMS = {
    "greedy": SamplingParams(max_new=NEW, ignore_eos=True),
    "sampled": SamplingParams(max_new=NEW, ignore_eos=True, temperature=0.8, seed=7),
}
SELECTIONS = {"dense": Selection(), "selected": Selection(cells=2_048)}
TIGHT = "tight"
"""A budget that holds few experts beside the ring."""

SAME_ROWS: list[dict[str, Any]] = [
    {"resident_cells": 1},
    {"resident_cells": 2_048},
    {"resident_cells": 8_192},
    {"resident_cells": 4_096, "victims": "lrfu"},
    {"resident_cells": 2_048, "budget": TIGHT},
    {"resident_cells": 4_096, "prefetch": "pages"},
    {"resident_cells": 2_048, "victims": "lrfu", "budget": TIGHT, "prefetch": "all"},
]
OTHER_ROWS: list[dict[str, Any]] = [
    *({"drafts": drafts} for drafts in (1, 7, "auto")),
    *({"drafts": 3, "window_cells": window} for window in (0, 64, 4_096)),
    {"drafts": 3, "min_p": 0.4, "resident_cells": 2_048},
    {"drafts": 3, "resident_cells": 1, "victims": "lrfu"},
    {"drafts": 3, "resident_cells": 2_048, "budget": TIGHT, "window_cells": 256},
    {"drafts": 5, "resident_cells": 4_096, "rounds": "launched"},
    {"drafts": 3, "resident_cells": 8_192, "prefetch": "pages"},
    {"drafts": 3, "resident_cells": 4_096, "budget": TIGHT, "prefetch": "all"},
]


def open_session(model: LanguageModel, cells: int, changes: dict[str, Any]) -> Session:
    """Return a session of the base configuration with `changes`, each named by its field."""
    rest = dict(changes)
    kv = {k: rest.pop(k) for k in ("resident_cells", "victims", "selection") if k in rest}
    spec = {k: rest.pop(k) for k in ("drafts", "window_cells", "min_p") if k in rest}
    tight = rest.pop("budget", None) == TIGHT
    base = KvConfig(resident_cells=0), SpecConfig(drafts=0, window_cells=1_024)
    config = SessionConfig(kv=replace(base[0], **kv), spec=replace(base[1], **spec), **rest)

    def create(budget: int | None) -> Session:
        with_budget = replace(config, vram_budget_bytes=budget)
        return create_session(model, with_budget, prompt_cells=cells, max_new=NEW, environ={})

    if not tight:
        return create(None)
    for mib in range(24, 160, 4):
        try:
            create(mib * MIB).close()
        except BudgetError:
            continue
        session = create((mib + 2) * MIB)
        assert session.expert_slots < 288, "the budget is not tight"
        return session
    raise AssertionError("no budget holds the session")


def run(model: LanguageModel, parked: Parked, changes: dict[str, Any], how: str) -> list[int]:
    session = open_session(model, parked.prompt_cells, changes)
    session.restore(parked)
    tokens = session.generate(PARAMS[how]).tokens
    session.engine.check_integrity()
    session.close()
    return tokens


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return load_model(bundled_model_path(), "cuda")


@pytest.fixture(scope="module", params=[1_024, 32_768, 131_072])
def parked(request: pytest.FixtureRequest, model: LanguageModel) -> Parked:
    session = open_session(model, request.param, {"drafts": 1, "window_cells": 0})
    session.prefill(load_passage(f"{request.param}:5", model.tokenizer))
    return session.park()


@pytest.mark.parametrize("reading", list(SELECTIONS))
@pytest.mark.parametrize("how", list(PARAMS))
def test_tokens_are_the_same(model: LanguageModel, parked: Parked, how: str, reading: str) -> None:
    selection = {"selection": SELECTIONS[reading]}
    expected = run(model, parked, selection, how)
    for change in [*SAME_ROWS, *OTHER_ROWS]:
        assert run(model, parked, {**change, **selection}, how) == expected, change


@pytest.mark.parametrize("reading", list(SELECTIONS))
@pytest.mark.parametrize("drafts", [0, 3])
def test_hidden_states_are_the_same_bits(
    model: LanguageModel,
    parked: Parked,
    monkeypatch: pytest.MonkeyPatch,
    drafts: int,
    reading: str,
) -> None:
    recorded: list[torch.Tensor] = []
    draw = TokenDraw.tokens

    def record(self: TokenDraw, hidden: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
        recorded.append(hidden.clone())
        return draw(self, hidden, *args)

    monkeypatch.setattr(TokenDraw, "tokens", record)
    fixed = {"selection": SELECTIONS[reading], "drafts": drafts, "rounds": "launched"}
    run(model, parked, fixed, "greedy")
    expected = list(recorded)
    for change in SAME_ROWS:
        recorded.clear()
        run(model, parked, {**fixed, **change}, "greedy")
        assert len(recorded) == len(expected), change
        assert all(map(torch.equal, recorded, expected)), change
