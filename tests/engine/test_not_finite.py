"""Weights or K/V of NaN end a continuation with a sentence, not with a token that looks like one.

Held for the plain engine and for rounds of phases, captured and not: in the prompt, in a round, in
the middle of a window; what was drawn before is shown; a session works again once the NaN is gone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from strata.captured import CapturedEngine
from strata.cli.main import app
from strata.config import KvConfig, SamplingParams, SessionConfig, SpecConfig
from strata.errors import NotFiniteError
from strata.lm import LanguageModel, load_model
from strata.session import Session, create_session
from tests.conftest import TINY, prompt_of

CELLS, NEW = 60, 20
PARAMS = SamplingParams(max_new=NEW, ignore_eos=True)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
ROUNDS = ["reference", "launched", "captured"]


@pytest.fixture(params=DEVICES)
def model(request: pytest.FixtureRequest) -> LanguageModel:
    """Return a model of the test's own, whose weights it may spoil."""
    return load_model(TINY, request.param)


def open_session(model: LanguageModel, rounds: Any, drafts: int) -> Session:
    config = SessionConfig(
        kv=KvConfig(resident_cells=0), spec=SpecConfig(drafts=drafts), rounds=rounds
    )
    session = create_session(model, config, prompt_cells=CELLS, max_new=NEW, environ={})
    if rounds != "reference" and model.device.type == "cpu":
        e = session.engine
        session.engine = CapturedEngine(e.model, e.kv, e.experts, e.drafter)
    return session


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_weight_of_nan_is_said(model: LanguageModel, rounds: str, drafts: int) -> None:
    session = open_session(model, rounds, drafts)
    session.prefill(prompt_of(model, CELLS))
    want = session.generate(PARAMS).tokens
    session.rewind()
    gain = model.weights.layers[-1].norm
    before = gain[3].item()
    shown: list[str] = []

    def spoil(text: str) -> None:
        shown.append(text)
        if len(shown) == 3:
            gain[3] = float("nan")

    with pytest.raises(NotFiniteError, match=r"token at position \d+ are not finite"):
        session.generate(PARAMS, spoil)
    text = "".join(shown)
    assert text
    assert model.tokenizer.decode(want).startswith(text), "no token of a NaN was shown"
    gain[3] = before
    session.rewind()
    assert session.generate(PARAMS).tokens == want


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("rounds", ROUNDS)
def test_kv_of_nan_is_said(model: LanguageModel, rounds: str, bad: float) -> None:
    session = open_session(model, rounds, 1)
    session.prefill(prompt_of(model, CELLS))
    session.engine.kv.transfer.pool[..., 0] = bad
    with pytest.raises(NotFiniteError, match=f"position {CELLS + 1} "):
        session.generate(PARAMS)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_nan_in_a_prompt_is_said_with_its_first_token(model: LanguageModel, rounds: str) -> None:
    model.weights.layers[0].norm.fill_(float("nan"))
    session = open_session(model, rounds, 1)
    session.prefill(prompt_of(model, CELLS))
    with pytest.raises(NotFiniteError, match=f"position {CELLS} "):
        session.generate(PARAMS)
    session.close()


def test_the_command_says_so_and_ends_with_2(tmp_path: Path) -> None:
    for source in TINY.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"].fill_(3e38)  # finite, and no product of it is
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    args = ["generate", "def f(", "--max-new", "4", "--device", "cpu", "--model", str(tmp_path)]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 2
    assert "are not finite" in done.stderr
