"""A checkpoint that cannot be used is refused in one sentence that says what and where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from generate_samples import copy_checkpoint, refused, stats
from safetensors.torch import load_file, save_file

WEIGHTS, CONFIG, TOKENS = "model.safetensors", "config.json", "tokenizer.json"
INDEX = "model.safetensors.index.json"


LAYERS = {"layer_types": None, "mlp_layer_types": None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_checkpoint(tmp_path / "model")


def edit(path: Path, **changes: Any) -> None:
    raw = json.loads(path.read_text())
    for key, value in changes.items():
        if value is ...:
            del raw[key]
        else:
            raw[key] = value
    path.write_text(json.dumps(raw))


def test_a_missing_folder_a_file_and_an_empty_folder(tmp_path: Path) -> None:
    assert "no folder" in refused("a", model=tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    assert "no folder" in refused("a", model=tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert "no config.json" in refused("a", model=tmp_path / "empty")


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG, TOKENS])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "noise"])
def test_each_file_missing_truncated_or_noise(folder: Path, name: str, damage: str) -> None:
    path = folder / name
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {"empty": b"", "half": whole[: len(whole) // 2], "noise": b"\xff" * 999}[damage]
        )
    assert name in refused("a", model=folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "llama"}, "model_type 'llama' is not supported"),
        ({"model_type": ...}, "no key 'model_type'"),
        ({"hidden_size": ...}, "no key 'hidden_size'"),
        ({"hidden_size": 128}, "has shape"),
        ({"hidden_size": "wide"}, "wide"),
        ({"hidden_size": -64}, "hidden_size is -64"),
        ({"num_attention_heads": 0, "head_dim": None}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"num_key_value_heads": 3}, "do not fit 3 K/V heads"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 9}, "layer_types has 2 entries for 9 layers"),
        ({**LAYERS, "num_hidden_layers": 9}, "no tensor model.layers.2"),
        ({**LAYERS, "num_hidden_layers": 1_000_000_000}, "no tensor model.layers.2"),
        ({**LAYERS, "num_hidden_layers": 1}, "does not account for: model.layers.1."),
        ({"num_local_experts": 7}, "has shape"),
        ({"num_experts_per_tok": 9}, "9 experts a token"),
        ({"head_dim": 33}, "33"),
        ({"vocab_size": 8}, "8"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ({"rope_parameters": ...}, "rope_parameters"),
        ({"rope_parameters": None}, "rope_parameters"),
        ({"rope_parameters": {"full_attention": 7}}, "full_attention"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "yarn"),
        ({"rope_parameters": {"rope_theta": 0}}, "rope_theta is 0"),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding_attention"),
        ({"mlp_layer_types": ["dense", "sparse"]}, "sparse"),
        ({"mtp_mlp_layer_types": []}, "MTP"),
        ({"mtp_mlp_layer_types": ["sparse"]}, "MTP"),
        ({"num_nextn_predict_layers": 2}, "two names of one key"),
        ({"num_nextn_predict_layers": 2, "num_mtp_layers": None}, "MTP"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"eos_token_id": "end"}, "end"),
        ({"eos_token_id": ["end"]}, "end"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized"),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_be(folder: Path, changes: dict[str, Any], words: str) -> None:
    edit(folder / CONFIG, **changes)
    sentence = refused("a", model=folder)
    assert words in sentence
    assert str(folder) in sentence


@pytest.mark.parametrize("text", ["[]", "3", "null", '"mellum"'])
def test_a_configuration_that_is_no_object(folder: Path, text: str) -> None:
    (folder / CONFIG).write_text(text)
    assert "no JSON object" in refused("a", model=folder)


@pytest.mark.parametrize("text", ["[0]", "{", '{"eos_token_id": "x"}', "3"])
def test_a_damaged_generation_config(folder: Path, text: str) -> None:
    edit(folder / CONFIG, eos_token_id=None)
    (folder / "generation_config.json").write_text(text)
    assert "generation_config.json" in refused("a", model=folder)


def test_the_generation_config_is_optional(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    assert len(stats("a", "--max-new", 2, model=folder)["tokens"]) <= 2


def shard(folder: Path) -> dict[str, str]:
    """Split the weights in two shards with an index; return its map."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names, parts = {}, ({}, {})
    for i, (name, tensor) in enumerate(tensors.items()):
        parts[i % 2][name] = tensor
        names[name] = f"part-{i % 2}.safetensors"
    for i, part in enumerate(parts):
        save_file(part, folder / f"part-{i}.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return names


def test_shards_give_what_one_file_gives(folder: Path, tmp_path: Path) -> None:
    whole = stats("def f(", "--max-new", 12, model=folder)
    sharded = copy_checkpoint(tmp_path / "sharded")
    shard(sharded)
    split = stats("def f(", "--max-new", 12, model=sharded)
    assert split["token_hash"] == whole["token_hash"]
    assert split["model_hash"] != "" != whole["model_hash"]


@pytest.mark.parametrize("damage", ["missing", "half", "index", "map"])
def test_damaged_shards(folder: Path, damage: str) -> None:
    names = shard(folder)
    path = folder / "part-1.safetensors"
    if damage == "missing":
        path.unlink()
    elif damage == "half":
        path.write_bytes(path.read_bytes()[:-9])
    elif damage == "index":
        (folder / INDEX).write_text('{"weight_map": ')
    else:
        (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, 5)}))
    expected = INDEX if damage in ("index", "map") else path.name
    assert expected in refused("a", model=folder)


def test_a_tensor_of_another_shape_or_missing(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    name = "model.layers.1.self_attn.k_proj.weight"
    save_file({**tensors, name: torch.zeros(3, 64)}, folder / WEIGHTS)
    assert f"{name} has shape (3, 64)" in refused("a", model=folder)
    bias = "model.layers.1.self_attn.k_proj.bias"
    save_file({**tensors, bias: torch.zeros(32)}, folder / WEIGHTS)
    assert refused("a", model=folder).endswith(f"does not account for: {bias}")
    del tensors[name]
    save_file(tensors, folder / WEIGHTS)
    assert f"no tensor {name}" in refused("a", model=folder)


def test_a_model_without_a_drafter_runs_without_one(folder: Path) -> None:
    plain = stats("def f(", "--max-new", 8, "--spec", 0, model=folder)
    tensors = load_file(folder / WEIGHTS)
    save_file({k: t for k, t in tensors.items() if not k.startswith("mtp.")}, folder / WEIGHTS)
    assert "no tensor mtp." in refused("a", model=folder)
    edit(folder / CONFIG, num_nextn_predict_layers=0, num_mtp_layers=0)
    without = stats("def f(", "--max-new", 8, model=folder)
    assert without["token_hash"] == plain["token_hash"]
    assert without["spec"] == 0
    assert "no MTP layer" in refused("a", "--spec", 1, model=folder)
