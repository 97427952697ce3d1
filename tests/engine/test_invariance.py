"""Ring invariance: what a session computes does not depend on what it keeps resident.

Every value of each axis against one base, and pairs of axes, greedy and sampled, in one process.
Level 1 (bit-identical logits) holds for everything that does not change the rows of a window;
level 2 (identical tokens) for all of it. The smallest distance of two best logits that was met is
printed, because on a CPU rows may differ in the last bit with the number of rows.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.lm import LanguageModel, load_model
from strata.session import Session, create_session
from tests.conftest import TINY, prompt_of

CELLS, NEW = 700, 48
SELECT = Selection(cells=160)


def config(**changes: Any) -> SessionConfig:
    """Return the base configuration with `changes`, each named by its own field."""
    kv = {
        key: changes.pop(key)
        for key in ("resident_cells", "victims", "selection")
        if key in changes
    }
    spec = {key: changes.pop(key) for key in ("drafts", "window_cells", "min_p") if key in changes}
    base = SessionConfig(kv=KvConfig(resident_cells=0), spec=SpecConfig(drafts=0))
    return replace(base, kv=replace(base.kv, **kv), spec=replace(base.spec, **spec), **changes)


def budget(model: LanguageModel, *, experts: int) -> int:
    """Return a budget that leaves room for the ring and for `experts` of the experts."""
    expert_bytes = model.weights.experts[0].nbytes
    return model.weights.device_bytes() + 900_000 + experts * expert_bytes


AXES: dict[str, list[dict[str, Any]]] = {
    "ring": [{"resident_cells": 1}, {"resident_cells": 256}, {"resident_cells": 512}],
    "victims": [{"victims": "lrfu", "resident_cells": 256}],
    "experts": [{"vram_budget_bytes": 2}, {"vram_budget_bytes": 16}],
    "drafts": [
        {"drafts": 1},
        {"drafts": 3},
        {"drafts": 7},
        {"drafts": "auto"},
        {"drafts": 3, "min_p": 0.4},
    ],
    "window": [{"drafts": 3, "window_cells": w} for w in (0, 4, 16, 700, 5000)],
}


class Case:
    """One run in a session of its own."""

    def __init__(
        self, model: LanguageModel, ids: list[int], changes: dict[str, Any], params: SamplingParams
    ) -> None:
        changes = dict(changes)
        if "vram_budget_bytes" in changes:
            changes["vram_budget_bytes"] = budget(model, experts=changes["vram_budget_bytes"])
        self.session: Session = create_session(
            model, config(**changes), prompt_cells=len(ids), max_new=params.max_new, environ={}
        )
        self.session.engine.track_gap = True
        self.session.prefill(ids)
        self.generation = self.session.generate(params)
        self.session.engine.check_integrity()


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return load_model(TINY, request.param)


@pytest.fixture(scope="module")
def prompt(model: LanguageModel) -> list[int]:
    return prompt_of(model, CELLS, seed=2)


PARAMS = {
    "greedy": SamplingParams(max_new=NEW, ignore_eos=True),
    "sampled": SamplingParams(
        max_new=NEW, ignore_eos=True, temperature=0.8, top_k=50, top_p=0.95, min_p=0.02, seed=7
    ),
}
SELECTIONS = {"dense": Selection(), "selected": SELECT}


@pytest.fixture(scope="module")
def bases(model: LanguageModel, prompt: list[int]) -> dict[tuple[str, str], list[int]]:
    return {
        (how, reading): Case(model, prompt, {"selection": selection}, params).generation.tokens
        for how, params in PARAMS.items()
        for reading, selection in SELECTIONS.items()
    }


def merged(*changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for change in changes for key, value in change.items()}


SINGLE = [change for values in AXES.values() for change in values]
PAIRS = [
    merged(*values)
    for a, b in itertools.combinations(AXES, 2)
    for values in [(AXES[a][0], AXES[b][-1]), (AXES[a][-1], AXES[b][0])]
]


@pytest.mark.parametrize("reading", list(SELECTIONS))
@pytest.mark.parametrize("how", list(PARAMS))
def test_tokens_do_not_depend_on_any_axis(
    model: LanguageModel,
    prompt: list[int],
    bases: dict[tuple[str, str], list[int]],
    how: str,
    reading: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gap = float("inf")
    for change in [*SINGLE, *PAIRS]:
        case = Case(model, prompt, {**change, "selection": SELECTIONS[reading]}, PARAMS[how])
        assert case.generation.tokens == bases[how, reading], change
        assert case.session.engine.forwards == case.generation.rounds, change
        gap = min(gap, case.session.engine.smallest_gap)
    with capsys.disabled():
        print(f"\n{how}, {reading}: {len(SINGLE) + len(PAIRS)} runs, smallest gap {gap:.2e}")


def test_selection_changes_what_is_read(bases: dict[tuple[str, str], list[int]]) -> None:
    """A selection that read everything would make the selected half of the matrix empty."""
    assert bases["greedy", "dense"] != bases["greedy", "selected"]


@pytest.mark.parametrize("reading", list(SELECTIONS))
@pytest.mark.parametrize(
    "change",
    [*AXES["ring"], *AXES["victims"], *AXES["experts"]],
    ids=lambda change: "-".join(f"{k}={v}" for k, v in change.items()),
)
@pytest.mark.parametrize("drafts", [0, 3])
def test_logits_are_bit_identical_where_the_rows_are(
    model: LanguageModel,
    prompt: list[int],
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    reading: str,
    drafts: int,
) -> None:
    """Level 1: hits, misses, in-place reads and expert slots leave no trace in any bit."""
    recorded: list[list[torch.Tensor]] = []
    head = type(model).logits

    def record(self: LanguageModel, hidden: torch.Tensor) -> torch.Tensor:
        out = head(self, hidden)
        recorded[-1].append(out)
        return out

    monkeypatch.setattr(type(model), "logits", record)
    for changes in ({}, change):
        recorded.append([])
        Case(
            model,
            prompt,
            {"graphs": False, "drafts": drafts, "window_cells": 64, "selection": SELECTIONS[reading], **changes},
            PARAMS["greedy"],
        )
    base, other = recorded
    assert len(base) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(base, other, strict=True))


def test_rewind_repeats_a_generation(model: LanguageModel, prompt: list[int]) -> None:
    for selection in SELECTIONS.values():
        for drafts in (0, 3):
            changes = {
                "selection": selection,
                "drafts": drafts,
                "window_cells": 32,
                "resident_cells": 256,
            }
            case = Case(model, prompt, changes, PARAMS["greedy"])
            first = case.generation
            case.session.rewind()
            case.session.generate(SamplingParams(max_new=8))
            case.session.rewind()
            again = case.session.generate(PARAMS["greedy"])
            assert again.tokens == first.tokens
            assert (again.rounds, again.accepted) == (first.rounds, first.accepted)
            assert again.kv.lookups == first.kv.lookups
