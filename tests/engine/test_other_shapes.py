"""Checkpoints of other shapes than those at hand, against `transformers` with random weights."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.lm import LanguageModel, load_model
from strata.session import create_session
from tests.conftest import TINY

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers")

SHAPES: dict[str, dict[str, Any]] = {
    "two K/V heads": {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16},
    "as many K/V heads as heads": {"num_attention_heads": 4, "num_key_value_heads": 4},
    "heads wider than the model": {"num_attention_heads": 2, "head_dim": 64},
    "one expert a token": {"num_experts_per_tok": 1},
    "every expert": {"num_experts_per_tok": 8},
    "weights of the router as they are": {"norm_topk_prob": False},
    "a head of its own": {"tie_word_embeddings": False},
    "one layer": {"layers": 1},
    "odd widths": {"hidden_size": 48, "moe_intermediate_size": 20, "intermediate_size": 36},
    "another base": {"rope_theta": 1234.5, "rms_norm_eps": 1e-3},
}


def make_checkpoint(folder: Path, changes: dict[str, Any]) -> Any:
    """Save a random checkpoint; return the library's own model of it."""
    config = transformers.AutoConfig.from_pretrained(TINY)
    changes = dict(changes)
    layers = changes.pop("layers", 2)
    theta = changes.pop("rope_theta", None)
    for key, value in changes.items():
        setattr(config, key, value)
    config.num_hidden_layers = layers
    config.layer_types = ["full_attention"] * layers
    config.mlp_layer_types = ["sparse"] * layers
    if theta is not None:
        config.rope_parameters["full_attention"]["rope_theta"] = theta
    torch.manual_seed(len(changes))
    config.dtype = torch.float32
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Gains far from one and weights large enough that every part shows in the logits.
            weight.copy_(torch.randn(weight.shape) * 0.2 + (1 if "norm" in name else 0))
    model.save_pretrained(folder)
    add_drafter(folder / "model.safetensors", config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TINY / name, folder / name)
    return model


def add_drafter(path: Path, config: Any) -> None:
    """Add random MTP weights, which the library keeps out of the model that it saves."""
    h, d, f = config.hidden_size, config.head_dim, config.intermediate_size
    q, kv = config.num_attention_heads * d, config.num_key_value_heads * d
    layer = "mtp.layers.0"
    shapes = {
        "mtp.fc.weight": (h, 2 * h),
        "mtp.pre_fc_norm_embedding.weight": (h,),
        "mtp.pre_fc_norm_hidden.weight": (h,),
        "mtp.norm.weight": (h,),
        f"{layer}.input_layernorm.weight": (h,),
        f"{layer}.post_attention_layernorm.weight": (h,),
        f"{layer}.self_attn.q_proj.weight": (q, h),
        f"{layer}.self_attn.k_proj.weight": (kv, h),
        f"{layer}.self_attn.v_proj.weight": (kv, h),
        f"{layer}.self_attn.o_proj.weight": (h, q),
        f"{layer}.self_attn.q_norm.weight": (d,),
        f"{layer}.self_attn.k_norm.weight": (d,),
        f"{layer}.mlp.gate_proj.weight": (f, h),
        f"{layer}.mlp.up_proj.weight": (f, h),
        f"{layer}.mlp.down_proj.weight": (h, f),
    }
    tensors = {name: torch.randn(shape) * 0.2 for name, shape in shapes.items()}
    save_file({**load_file(path), **tensors}, path)


@pytest.fixture(scope="module", params=list(SHAPES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("checkpoint")
    reference = make_checkpoint(folder, SHAPES[request.param])
    return load_model(folder, "cpu"), reference


def ids_of(count: int) -> list[int]:
    return torch.randint(0, 1024, (count,), generator=torch.Generator().manual_seed(1)).tolist()


def test_logits_are_the_peers(pair: tuple[LanguageModel, Any]) -> None:
    model, reference = pair
    ids = ids_of(90)
    with torch.no_grad():
        expected = reference(torch.tensor([ids])).logits[0]
    session = create_session(
        model,
        SessionConfig(spec=SpecConfig(drafts=0), kv=KvConfig(page_cells=3, resident_cells=12)),
        prompt_cells=len(ids),
        max_new=4,
        environ={},
    )
    session.prefill(ids[:60])
    with torch.inference_mode():
        got = [model.logits(session.engine._prompt_hidden)[0]]
        for token in ids[60:]:
            hidden = session.engine._verify(torch.tensor([token]))
            session.engine.kv.commit(1)
            got.append(model.logits(hidden)[0])
    scale = float(expected.abs().max())
    torch.testing.assert_close(torch.stack(got), expected[59:], atol=2e-5 * scale, rtol=0)


def test_tokens_do_not_depend_on_ring_drafts_or_window(pair: tuple[LanguageModel, Any]) -> None:
    model, _ = pair
    ids = ids_of(120)
    for selection in (Selection(), Selection(cells=40)):
        tokens = {}
        for ring, page, drafts, window in ((0, 4, 0, 0), (1, 4, 3, 5), (60, 4, 7, 0)):
            config = SessionConfig(
                kv=KvConfig(resident_cells=ring, page_cells=page, selection=selection),
                spec=SpecConfig(drafts=drafts, window_cells=window),
            )
            session = create_session(model, config, prompt_cells=len(ids), max_new=24, environ={})
            session.prefill(ids)
            done = session.generate(
                SamplingParams(max_new=24, ignore_eos=True, temperature=0.7, seed=2)
            )
            tokens[ring, drafts] = done.tokens
        assert len({str(each) for each in tokens.values()}) == 1, tokens
