"""Weights that are not what the folder promises are refused; none is dropped in silence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from lm_samples import EMBEDDING, HEAD, Folder, tokens_of

from strata.lm import load_model
from strata.lm.checkpoint import hash_checkpoint
from tests.conftest import TINY

NAME = "model.layers.1.self_attn.k_proj.weight"
EXPERT = "model.layers.1.mlp.experts.3.down_proj.weight"


@pytest.mark.parametrize(
    ("dtype", "word"),
    [
        (torch.int8, "int8"),
        (torch.uint8, "uint8"),
        (torch.bool, "bool"),
        (torch.float8_e4m3fn, "float8_e4m3fn"),
        (torch.complex64, "complex64"),
    ],
)
def test_numbers_of_a_kind_that_is_no_weight(folder: Folder, dtype: torch.dtype, word: str) -> None:
    for name in (NAME, EXPERT):
        folder.save(**{name: folder.tensors()[name].float().to(dtype)})
        assert f"{name} is {word}; strata reads float32, bfloat16, float16" in folder.refused()
        folder.save(**{name: torch.zeros(folder.tensors()[name].shape)})


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", [NAME, EXPERT, EMBEDDING, "mtp.fc.weight", "model.norm.weight"])
def test_weights_that_are_not_finite(folder: Folder, name: str, bad: float) -> None:
    tensor = folder.tensors()[name]
    tensor.view(-1)[tensor.numel() // 2] = bad
    folder.save(**{name: tensor})
    assert f"{name} has NaN or infinite ones among its numbers" in folder.refused()


def test_numbers_that_no_device_could_hold(folder: Folder) -> None:
    tensor = folder.tensors()[NAME].double()
    folder.save(**{NAME: tensor})
    assert tokens_of(load_model(folder.path, "cpu")), "the same numbers in double are fine"
    tensor[0, 0] = 1e300
    folder.save(**{NAME: tensor})
    assert f"{NAME} has numbers past float32's" in folder.refused()


@pytest.mark.parametrize("key", ["hidden_size", "moe_intermediate_size", "num_local_experts",
                                 "num_attention_heads", "head_dim", "vocab_size",
                                 "intermediate_size", "num_key_value_heads"])  # fmt: skip
def test_sizes_of_a_billion_are_refused_before_room_is_made(folder: Folder, key: str) -> None:
    folder.config(**{key: 10**9}, **({"num_attention_heads": 10**9} if "key" in key else {}))
    sentence = folder.refused()
    assert "has shape" in sentence or "no tensor model.layers.0.mlp.experts.8" in sentence


def test_a_tied_head_that_equals_the_embedding_is_the_embedding(folder: Folder) -> None:
    plain = tokens_of(load_model(TINY, "cpu"))
    folder.save(**{HEAD: folder.tensors()[EMBEDDING].clone()})
    model = load_model(folder.path, "cpu")
    assert model.config.tied
    assert model.config.warnings == ()
    assert tokens_of(model) == plain


def test_shards_in_folders_count(folder: Folder) -> None:
    folder.shard("model-1.safetensors", "part/model-2.safetensors")
    model = load_model(folder.path, "cpu")
    assert tokens_of(model) == tokens_of(load_model(TINY, "cpu"))
    path = folder.path / "part" / "model-2.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert hash_checkpoint(folder.path) != model.model_hash


def test_the_hash_of_a_flat_folder_is_what_it_always_was() -> None:
    """Policy tables and trials name models by it."""
    assert hash_checkpoint(TINY) == (
        "f79d9d32fa473c293c128fa5a31dc49aa3dd670b4b6d4611f50120679f9bb530"
    )


@pytest.mark.parametrize(
    "name",
    ["../../../etc/passwd", "/etc/passwd", "a/../../x.safetensors", "/x.safetensors",
     "../x.safetensors", "pytorch_model.bin", "", 5, None, ["a"], {"a": 1}],
)  # fmt: skip
def test_an_index_names_files_inside_the_folder(folder: Folder, name: object) -> None:
    places = folder.shard("model-1.safetensors")
    folder.index(places | {NAME: name})
    assert "a shard is a .safetensors file in the folder" in folder.refused()


def test_an_index_that_names_no_shards(folder: Folder) -> None:
    folder.shard("model-1.safetensors")
    for places in ([], {}, None, "x", 3):
        folder.index(places)
        assert "no weight_map" in folder.refused()


def test_a_shard_that_lacks_what_the_index_promises(folder: Folder) -> None:
    places = folder.shard("model-1.safetensors", "model-2.safetensors")
    other = {"model-1.safetensors": "model-2.safetensors"}
    folder.index(places | {NAME: other.get(places[NAME], "model-1.safetensors")})
    assert f"has no tensor {NAME}, which the index says it has" in folder.refused()


def test_a_tensor_in_two_shards(folder: Folder) -> None:
    places = folder.shard("model-1.safetensors", "model-2.safetensors")
    (folder.path / "copy.safetensors").write_bytes((folder.path / places[NAME]).read_bytes())
    folder.index(places | {NAME: "copy.safetensors"})
    assert "which another shard has too" in folder.refused()


def test_a_shard_that_is_no_file(folder: Folder) -> None:
    """A pipe would be waited for."""
    folder.shard("model-1.safetensors")
    (folder.path / "model-1.safetensors").unlink()
    os.mkfifo(folder.path / "model-1.safetensors")
    assert "model-1.safetensors is missing" in folder.refused()
    (folder.path / "model-1.safetensors").unlink()
    (folder.path / "model-1.safetensors").mkdir()
    assert "model-1.safetensors is missing" in folder.refused()


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_a_json_file_that_is_no_file(folder: Folder, name: str) -> None:
    path = folder.path / name
    path.unlink()
    os.mkfifo(path)
    assert f"{name} cannot be read as JSON: it is no file" in folder.refused()
    path.unlink()
    path.symlink_to("nowhere")
    assert name in folder.refused()


def test_what_is_no_file_beside_the_weights_is_left_alone(folder: Folder) -> None:
    os.mkfifo(folder.path / "other.safetensors")
    (folder.path / "more.safetensors").mkdir()
    assert load_model(folder.path, "cpu").model_hash == hash_checkpoint(TINY)


DEEP = "[" * 5_000 + "]" * 5_000


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "model.safetensors.index.json"]
)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"{", "cannot be read as JSON"),
        (b"[1]", "holds no JSON object"),
        (b"\xff\xfe{}", "cannot be read as JSON"),
        (DEEP.encode(), "nested too deep"),
        (b'{"a": ' + DEEP.encode() + b"}", "nested too deep"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "a whole number of 5000 digits"),
        (b'{"a": 1, "b": 2, "a": 3}', "the key 'a' stands there twice"),
        (b'{"weight_map": {"x": "a", "x": "b"}}', "the key 'x' stands there twice"),
    ],
)
def test_files_that_are_no_json_object(folder: Folder, name: str, text: bytes, words: str) -> None:
    (folder.path / name).write_bytes(text)
    sentence = folder.refused()
    assert words in sentence
    assert name in sentence


def test_a_safetensors_file_cut_anywhere(folder: Folder, tmp_path: Path) -> None:
    path = folder.path / "model.safetensors"
    whole = path.read_bytes()
    header = int.from_bytes(whole[:8], "little")
    for size in (0, 7, 8, 100, 8 + header, 8 + header + 1, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert "truncated or damaged" in folder.refused()
    names = json.loads(whole[8 : 8 + header])
    names[NAME]["data_offsets"][1] += 2
    text = json.dumps(names).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + header :])
    assert "truncated or damaged" in folder.refused()
