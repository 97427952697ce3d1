"""The engine against `transformers` on the same checkpoint, float32."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from strata.config import SessionConfig, SpecConfig
from strata.lm import LanguageModel, bundled_model_path, load_model
from strata.session import create_session
from tests.conftest import TINY, Run, prompt_of

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module", params=[TINY, bundled_model_path()], ids=["tiny", "bundled"])
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return load_model(request.param, "cpu")


@pytest.fixture(scope="module")
def reference(model: LanguageModel) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model.folder, dtype=torch.float32).eval()


def test_logits_of_prefill_and_of_decode_agree_over_512_positions(
    model: LanguageModel, reference: Any
) -> None:
    ids = prompt_of(model, 512)
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0]
    config = SessionConfig(spec=SpecConfig(drafts=0))
    # Half by prefill, half by one decode step a position, so that both paths are held.
    session = create_session(model, config, prompt_cells=512, max_new=8, environ={})
    session.prefill(ids[:256])
    engine = session.engine
    with torch.inference_mode():
        assert engine._prompt_hidden is not None
        got = [model.logits(engine._prompt_hidden)[0]]
        for token in ids[256:511]:
            hidden = engine._verify(torch.tensor([token]))
            engine.kv.commit(1)
            got.append(model.logits(hidden)[0])
    torch.testing.assert_close(torch.stack(got), expected[255:511], atol=1e-4, rtol=0)


def test_prefill_gives_every_position_the_same_hidden_state(
    model: LanguageModel, reference: Any
) -> None:
    ids = prompt_of(model, 512)
    session = create_session(model, SessionConfig(), prompt_cells=512, max_new=8, environ={})
    with torch.no_grad(), torch.inference_mode():
        queries = [torch.empty(0)] * model.config.layers
        hidden = session.engine._forward_chunk(torch.tensor(ids), 0, queries)
        logits = model.logits(hidden)
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("drafts", [0, 1, 3])
def test_greedy_tokens_are_the_peers(
    model: LanguageModel, reference: Any, run: Run, drafts: int
) -> None:
    ids = prompt_of(model, 400, seed=3)
    with torch.no_grad():
        expected = reference.generate(
            torch.tensor([ids]), max_new_tokens=96, do_sample=False, eos_token_id=None
        )[0, 400:].tolist()
    config = SessionConfig(spec=SpecConfig(drafts=drafts, window_cells=0))
    session, generation = run(config, prompt=ids, max_new=96, model=model)
    assert generation.tokens == expected
    assert session.engine.forwards == generation.rounds


def test_first_proposal_of_each_round_is_the_peers(
    model: LanguageModel, reference: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.generation import candidate_generator

    ids = prompt_of(model, 300, seed=5)
    theirs: list[tuple[int, int]] = []
    original = candidate_generator.MTPCandidateGenerator.get_candidates

    def record(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(self, input_ids, *args, **kwargs)
        candidates = result[0] if isinstance(result, tuple) else result
        if candidates.shape[1] > input_ids.shape[1]:
            theirs.append((input_ids.shape[1], int(candidates[0, input_ids.shape[1]])))
        return result

    monkeypatch.setattr(candidate_generator.MTPCandidateGenerator, "get_candidates", record)
    with torch.no_grad():
        reference.generate(
            torch.tensor([ids]), max_new_tokens=48, do_sample=False, eos_token_id=None, use_mtp=True
        )
    ours: list[tuple[int, int]] = []
    from strata.draft import MtpDrafter

    propose = MtpDrafter.propose

    def spy(self: MtpDrafter, *args: Any, **kwargs: Any) -> list[int]:
        drafts = propose(self, *args, **kwargs)
        if drafts:
            ours.append((self._next_cell, drafts[0]))
        return drafts

    monkeypatch.setattr(MtpDrafter, "propose", spy)
    run(
        SessionConfig(spec=SpecConfig(drafts=1, window_cells=0)),
        prompt=ids,
        max_new=48,
        model=model,
    )
    by_length = dict(theirs)
    common = [(at, token) for at, token in ours if at in by_length]
    assert len(common) >= 10
    assert [(at, by_length[at]) for at, _ in common] == common
