"""Ring invariance: what a session computes does not depend on what it keeps resident.

Every value of each axis against one base, and pairs of axes, greedy and sampled, in one process:
the bundled model, a passage of 4,096 cells, 128 new tokens. The prompt runs once and is restored.
Level 1 (bit-identical logits) holds for everything that does not change the rows of a window;
level 2 (identical tokens) for all of it. The smallest distance of two best scores that was met is
printed, because on a CPU rows may differ in the last bit with the number of rows.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from strata.captured import CapturedEngine
from strata.captured.tokens import TokenDraw
from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.lm import LanguageModel, bundled_model_path, load_model
from strata.parked import Parked
from strata.passages import load_passage
from strata.session import Session, create_session

CELLS, NEW = 4_096, 128
SELECT = Selection(cells=512)


def config(**changes: Any) -> SessionConfig:
    """Return the base configuration with `changes`, each named by its own field."""
    kv = {
        key: changes.pop(key)
        for key in ("resident_cells", "victims", "selection", "page_cells")
        if key in changes
    }
    spec = {key: changes.pop(key) for key in ("drafts", "window_cells", "min_p") if key in changes}
    base = SessionConfig(kv=KvConfig(resident_cells=0), spec=SpecConfig(drafts=0))
    return replace(base, kv=replace(base.kv, **kv), spec=replace(base.spec, **spec), **changes)


def budget(model: LanguageModel, *, experts: int) -> int:
    """Return a budget that leaves room for the ring and for `experts` of the experts."""
    expert_bytes = model.weights.experts[0].nbytes
    return model.weights.device_bytes + (22 << 20) + experts * expert_bytes


AXES: dict[str, list[dict[str, Any]]] = {
    "ring": [{"resident_cells": 1}, {"resident_cells": 1_024}, {"resident_cells": 2_048}],
    "victims": [{"victims": "lrfu", "resident_cells": 1_024}],
    "experts": [{"experts": 12}, {"experts": 288}],
    "drafts": [
        {"drafts": 1},
        {"drafts": 3},
        {"drafts": 7},
        {"drafts": "auto"},
        {"drafts": 3, "min_p": 0.4},
    ],
    "rounds": [{"rounds": "launched"}, {"rounds": "launched", "drafts": 3}],
    "prefetch": [
        {"prefetch": "pages", "resident_cells": 1_024},
        {"prefetch": "all", "resident_cells": 2_048, "experts": 40},
    ],
    "window": [{"drafts": 3, "window_cells": w} for w in (0, 4, 64, CELLS, 9_000)],
}


class Case:
    """One run in a session of its own, from a parked prompt."""

    def __init__(
        self,
        model: LanguageModel,
        parked: Parked,
        changes: dict[str, Any],
        params: SamplingParams,
    ) -> None:
        changes = dict(changes)
        if (experts := changes.pop("experts", None)) is not None:
            changes["vram_budget_bytes"] = budget(model, experts=experts)
        self.session: Session = create_session(
            model, config(**changes), prompt_cells=CELLS, max_new=params.max_new, environ={}
        )
        if "prefetch" in changes and model.device.type == "cpu":
            # Rounds of the reference fetch nothing ahead; phases on a CPU do.
            e, ahead = self.session.engine, changes["prefetch"]
            self.session.engine = CapturedEngine(
                e.model, e.kv, e.experts, e.drafter, prefetch=ahead
            )
        self.session.engine.track_gap = True
        self.session.restore(parked)
        self.generation = self.session.generate(params)
        self.session.engine.check_integrity()


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return load_model(bundled_model_path(), request.param)


@pytest.fixture(scope="module")
def parked(model: LanguageModel) -> Parked:
    session = create_session(model, config(drafts=1), prompt_cells=CELLS, max_new=NEW, environ={})
    session.prefill(load_passage(f"{CELLS}:5", model.tokenizer))
    return session.park()


PARAMS = {
    "greedy": SamplingParams(max_new=NEW, ignore_eos=True),
    "sampled": SamplingParams(
        max_new=NEW, ignore_eos=True, temperature=0.8, top_k=50, top_p=0.95, min_p=0.02, seed=7
    ),
}
SELECTIONS = {"dense": Selection(), "selected": SELECT}


@pytest.fixture(scope="module")
def bases(model: LanguageModel, parked: Parked) -> dict[tuple[str, str], list[int]]:
    return {
        (how, reading): Case(model, parked, {"selection": selection}, params).generation.tokens
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


def runs(model: LanguageModel) -> list[dict[str, Any]]:
    """Return what is run against a base, each configuration once.

    On a CPU nothing orders rounds but the reference, so there that axis is left out.
    """
    found = [*SINGLE, *PAIRS]
    if model.device.type == "cpu":
        found = [{k: v for k, v in change.items() if k != "rounds"} for change in found]
    return [change for at, change in enumerate(found) if change and change not in found[:at]]


@pytest.mark.parametrize("reading", list(SELECTIONS))
@pytest.mark.parametrize("how", list(PARAMS))
def test_tokens_do_not_depend_on_any_axis(
    model: LanguageModel,
    parked: Parked,
    bases: dict[tuple[str, str], list[int]],
    how: str,
    reading: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gap = float("inf")
    changes = runs(model)
    for change in changes:
        case = Case(model, parked, {**change, "selection": SELECTIONS[reading]}, PARAMS[how])
        assert case.generation.tokens == bases[how, reading], change
        assert case.session.engine.forwards == case.generation.rounds, change
        gap = min(gap, case.session.engine.smallest_gap)
    with capsys.disabled():
        print(f"\n{how}, {reading}: {len(changes)} runs, smallest gap {gap:.2e}")


def test_selection_changes_what_is_read(bases: dict[tuple[str, str], list[int]]) -> None:
    """A selection that read everything would make the selected half of the matrix empty."""
    assert bases["greedy", "dense"] != bases["greedy", "selected"]


@pytest.mark.parametrize("reading", list(SELECTIONS))
@pytest.mark.parametrize(
    "change",
    [*AXES["ring"], *AXES["victims"], *AXES["experts"], *AXES["prefetch"]],
    ids=lambda change: "-".join(f"{k}={v}" for k, v in change.items()),
)
@pytest.mark.parametrize("drafts", [0, 3])
def test_logits_are_bit_identical_where_the_rows_are(
    model: LanguageModel,
    parked: Parked,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    reading: str,
    drafts: int,
) -> None:
    """Level 1: hits, misses, in-place reads and expert slots leave no trace in any bit."""
    if "prefetch" in change and model.device.type == "cpu":
        pytest.skip("rounds of the reference fetch nothing ahead")
    recorded: list[list[torch.Tensor]] = []
    head = type(model).logits

    def record(self: LanguageModel, hidden: torch.Tensor) -> torch.Tensor:
        out = head(self, hidden)
        recorded[-1].append(out)
        return out

    draw = TokenDraw.tokens

    def record_hidden(self: TokenDraw, hidden: torch.Tensor, *args: torch.Tensor) -> torch.Tensor:
        recorded[-1].append(hidden.clone())
        return draw(self, hidden, *args)

    monkeypatch.setattr(type(model), "logits", record)
    monkeypatch.setattr(TokenDraw, "tokens", record_hidden)
    for changes in ({}, change):
        recorded.append([])
        Case(
            model,
            parked,
            {
                "rounds": "launched",
                "drafts": drafts,
                "window_cells": 64,
                "selection": SELECTIONS[reading],
                **changes,
            },
            SamplingParams(max_new=40, ignore_eos=True),
        )
    base, other = recorded
    assert len(base) == len(other)
    assert all(torch.equal(a, b) for a, b in zip(base, other, strict=True))


def test_rewind_repeats_a_generation(model: LanguageModel, parked: Parked) -> None:
    for selection in SELECTIONS.values():
        for drafts in (0, 3):
            changes = {
                "selection": selection,
                "drafts": drafts,
                "window_cells": 32,
                "resident_cells": 1_024,
            }
            case = Case(model, parked, changes, PARAMS["greedy"])
            first = case.generation
            case.session.rewind()
            case.session.generate(SamplingParams(max_new=8))
            case.session.rewind()
            again = case.session.generate(PARAMS["greedy"])
            assert again.tokens == first.tokens
            assert (again.rounds, again.accepted) == (first.rounds, first.accepted)
            assert again.kv.lookups == first.kv.lookups


def test_a_restored_prompt_is_the_prompt(model: LanguageModel, parked: Parked) -> None:
    """Restored with other pages, ring and selection, it continues as if it had been run there."""
    for selection in SELECTIONS.values():
        changes = {"selection": selection, "drafts": 2, "resident_cells": 1_024, "page_cells": 8}
        restored = Case(model, parked, changes, PARAMS["greedy"]).generation
        session = create_session(
            model, config(**changes), prompt_cells=CELLS, max_new=NEW, environ={}
        )
        session.prefill(load_passage(f"{CELLS}:5", model.tokenizer))
        ran = session.generate(PARAMS["greedy"])
        assert restored.tokens == ran.tokens
        assert (restored.rounds, restored.accepted) == (ran.rounds, ran.accepted)
        assert restored.kv == ran.kv
