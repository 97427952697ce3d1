"""What a tokenizer's file says about batches and training is no part of a prompt."""

from __future__ import annotations

import json

import pytest
import tokenizers
from lm_samples import Folder

from strata.lm import load_model
from strata.lm.tokenizer import Tokenizer

TEXT = "def read_config(path):\n    return open(path, encoding='utf-8').read()\n"


def tokenizer(folder: Folder) -> Tokenizer:
    return load_model(folder.path, "cpu").tokenizer


@pytest.mark.parametrize("setting", ["truncation", "padding", "left", "dropout"])
def test_settings_of_batches_and_training_are_turned_off(folder: Folder, setting: str) -> None:
    expected = tokenizer(folder).encode(TEXT)
    path = folder.path / "tokenizer.json"
    inner = tokenizers.Tokenizer.from_file(str(path))
    if setting == "truncation":
        inner.enable_truncation(8)
    elif setting == "dropout":
        inner.model.dropout = 0.9
    else:
        inner.enable_padding(length=64, direction="left" if setting == "left" else "right")
    inner.save(str(path))
    assert tokenizers.Tokenizer.from_file(str(path)).encode(TEXT).ids != expected
    assert tokenizer(folder).encode(TEXT) == expected


def test_a_token_past_the_models_is_refused_by_name(folder: Folder) -> None:
    """Also where the tokenizer has fewer tokens than the model: ids may leave gaps."""
    path = folder.path / "tokenizer.json"
    raw = json.loads(path.read_text())
    vocabulary = {"def": 0, "a": 5000}
    raw["model"] = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "a"}
    path.write_text(json.dumps(raw))
    assert "the token 'a' as id 5000, the model only 1024 tokens" in folder.refused()
