"""What `transformers` writes and reads, strata reads the same."""

from __future__ import annotations

import ast
import inspect
import json
import os
import shutil
import textwrap
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_samples import EMBEDDING, HEAD, Folder, tokens_of

from strata.config import SessionConfig
from strata.lm import LanguageModel, load_model
from strata.lm.config import load_config
from strata.lm.config_keys import HARMLESS, NEUTRAL
from strata.session import create_session
from tests.conftest import TINY, prompt_of

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

READ = {
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps",
    "tie_word_embeddings", "rope_parameters", "rope_theta", "moe_intermediate_size",
    "num_experts_per_tok", "num_experts", "num_local_experts", "norm_topk_prob", "eos_token_id",
    "head_dim", "layer_types", "mlp_layer_types", "num_mtp_layers", "num_nextn_predict_layers",
    "mtp_layer_types", "mtp_mlp_layer_types",
}  # fmt: skip


def keys_that_transformers_reads(config: Any) -> set[str]:
    """Return the fields of a configuration class, their other names, and what its code pops."""
    names = {field.name for field in fields(config)} | {*config.attribute_map}
    names |= {*config.attribute_map.values(), "model_type"}
    base = transformers.PreTrainedConfig
    for code in (base.__post_init__, base.convert_rope_params_to_dict):
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(code)))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("pop", "get")
                and node.args
                and isinstance(node.args[0], ast.Constant)
            ):
                names.add(node.args[0].value)
    return names


@pytest.mark.parametrize("name", ["MellumConfig", "Qwen3MoeConfig"])
def test_every_key_that_transformers_reads_is_thought_of(name: str) -> None:
    """Read, refused where it changes results, or known to change none."""
    read = keys_that_transformers_reads(getattr(transformers, name))
    assert {"rope_scaling", "partial_rotary_factor", "per_layer_config", "torch_dtype"} <= read
    assert read - READ - {*NEUTRAL} - {*HARMLESS} == set()
    assert len(READ) + len(NEUTRAL) + len(HARMLESS) == len(READ | {*NEUTRAL} | {*HARMLESS})


OTHER = ("other", 7, 0.5, True, False, [1], {"rope_type": "yarn"})


@pytest.mark.parametrize("key", sorted(NEUTRAL))
def test_a_key_that_changes_results_is_refused_unless_it_says_that_it_does_not(
    folder: Folder, key: str
) -> None:
    for value in (None, *NEUTRAL[key]):
        folder.config(**{key: value})
        assert load_config(folder.path).warnings == ()
    for value in OTHER:
        if not any(value == one and type(value) is type(one) for one in NEUTRAL[key]):
            folder.config(**{key: value})
            assert key in folder.refused()


@pytest.mark.parametrize("key", sorted({*HARMLESS} | READ))
def test_null_is_absent_for_every_key(folder: Folder, key: str) -> None:
    def outcome() -> Any:
        try:
            return load_config(folder.path)
        except Exception as error:
            return str(error)

    path = folder.path / "config.json"
    folder.config(**{key: None})
    as_null = outcome()
    raw = json.loads(path.read_text())
    del raw[key]
    path.write_text(json.dumps(raw))
    assert as_null == outcome()


@pytest.mark.parametrize(
    "key", sorted(transformers.modeling_rope_utils.RopeParameters.__annotations__)
)
@pytest.mark.parametrize("flat", [True, False])
def test_rope_parameters_other_than_plain_rotation(folder: Folder, key: str, flat: bool) -> None:
    plain = {"rope_type": "default", "rope_theta": 1e6}
    values = {"rope_type": ("yarn", 3), "rope_theta": ("x", True, 0, -1, float("inf"))}
    for value in values.get(key, (0.5, [2.0], "x", True)):
        rope = plain | {key: value}
        folder.config(rope_parameters=rope if flat else {"full_attention": rope})
        assert key in folder.refused()
    folder.config(rope_parameters=plain | {"partial_rotary_factor": 1.0, "factor": None})
    assert load_config(folder.path) == load_config(TINY)


def test_rotation_named_beside_rope_parameters(folder: Folder) -> None:
    folder.config(rope_theta=1000000, rope_scaling={"rope_type": "default"})
    assert load_config(folder.path) == load_config(TINY)
    folder.config(rope_theta=5.0)
    assert "rope_theta is 5.0 beside 1000000.0" in folder.refused()
    folder.config(rope_theta=None, rope_scaling={"type": "yarn", "factor": 4.0})
    assert "rope_scaling" in folder.refused()
    flat = {"rope_theta": 1e6, "full_attention": {"rope_theta": 1e6}}
    folder.config(rope_scaling=None, rope_parameters=flat)
    assert "rope_parameters.rope_theta" in folder.refused()


def test_a_key_that_nobody_knows_is_named(folder: Folder) -> None:
    folder.config(**{"attention_sinks": 4, "\x1b[31m": None, "\x1b[2J": 1})
    model = load_model(folder.path, "cpu")
    session = create_session(model, SessionConfig(), prompt_cells=4, max_new=2, environ={})
    (warning,) = (line for line in session.warnings if "does not know" in line)
    assert '"attention_sinks"' in warning
    assert "\x1b" not in warning


def logits_of(model: LanguageModel, ids: list[int]) -> torch.Tensor:
    session = create_session(model, SessionConfig(), prompt_cells=len(ids), max_new=2, environ={})
    session.prefill(ids)
    with torch.inference_mode():
        return model.logits(session.engine._prompt_hidden)[0]


def greedy(peer: Any, ids: list[int]) -> list[int]:
    peer.generation_config.eos_token_id = None
    out = peer.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
    return out[0, len(ids) :].tolist()


def check_equal(model: LanguageModel, peer: Any) -> None:
    ids = prompt_of(model, 40)
    with torch.no_grad():
        expected = peer(torch.tensor([ids])).logits[0, -1]
    atol = 2e-5 * float(expected.abs().max())
    torch.testing.assert_close(logits_of(model, ids), expected, atol=atol, rtol=0)
    assert tokens_of(model) == greedy(peer, ids)


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_without_mtp_as_transformers_writes_it(tmp_path: Path, tied: bool) -> None:
    """Nulls and a sliding window that no layer has included."""
    config = transformers.MellumConfig(
        vocab_size=1024, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, moe_intermediate_size=24,
        num_experts=4, num_experts_per_tok=2, tie_word_embeddings=tied, dtype=torch.float32,
    )  # fmt: skip
    torch.manual_seed(3)
    peer = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, weight in peer.named_parameters():
            weight.copy_(torch.randn(weight.shape) * 0.3 + (1 if "norm" in name else 0))
    peer.save_pretrained(tmp_path)
    shutil.copyfile(TINY / "tokenizer.json", tmp_path / "tokenizer.json")
    text = (tmp_path / "config.json").read_text()
    assert '"mtp_layer_types": null' in text
    model = load_model(tmp_path, "cpu")
    assert not model.has_mtp
    assert model.config.warnings == ()
    check_equal(model, peer)


def test_a_tied_head_of_its_own_is_used_and_said(folder: Folder) -> None:
    folder.save(**{HEAD: folder.tensors()[EMBEDDING].flip(0).clone()})
    model = load_model(folder.path, "cpu")
    assert not model.config.tied
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder.path, dtype=torch.float32)
    check_equal(model, peer)
    session = create_session(model, SessionConfig(), prompt_cells=4, max_new=2, environ={})
    assert any("lm_head.weight differs" in warning for warning in session.warnings)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (5, {"eos_token_id": [0, 14]}, (0, 14)),
        ([5, 6], {"eos_token_id": 14}, (14,)),
        (5, {"do_sample": False}, None),
        (5, None, (5,)),
        (None, {"eos_token_id": [0, 14]}, (0, 14)),
        (None, None, ()),
    ],
)
def test_a_generation_config_says_where_a_text_ends(
    folder: Folder, config: Any, generation: Any, expected: tuple[int, ...] | None
) -> None:
    folder.config(eos_token_id=config)
    path = folder.path / "generation_config.json"
    path.unlink()
    if generation is not None:
        path.write_text("{}")
        folder.edit(path.name, **generation)
    got = load_model(folder.path, "cpu").tokenizer.eos_ids
    # A file that names none: transformers never ends then, strata at the ids of config.json.
    assert got == ((5,) if expected is None else expected)
    if expected is not None:
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder.path)
        ids = theirs.generation_config.eos_token_id
        assert got == tuple(ids if isinstance(ids, list) else [] if ids is None else [ids])
