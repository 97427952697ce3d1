"""What a tokenizer's file says about batches and training is no part of a prompt."""

from __future__ import annotations

import json

import pytest
import tokenizers
from lm_samples import Folder
from typer.testing import CliRunner

from strata.cli.main import app
from strata.generation import hash_tokens
from strata.lm import load_model
from strata.lm.tokenizer import Tokenizer
from strata.passages import document_of_seed, load_passage, read_document
from tests.conftest import TINY

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


def with_template(folder: Folder, template: str) -> None:
    path = folder.path / "tokenizer.json"
    inner = tokenizers.Tokenizer.from_file(str(path))
    inner.add_special_tokens(["<s>", "</s>"])
    tokens = [(word, inner.token_to_id(word)) for word in ("<s>", "</s>")]
    # The stand-in has as many tokens as the model: two of its own make room.
    raw = json.loads(inner.to_str())
    for (word, old), new in zip(tokens, (1022, 1023), strict=True):
        next(one for one in raw["added_tokens"] if one["id"] == old)["id"] = new
        vocabulary = raw["model"]["vocab"]
        spare = next(token for token, one in vocabulary.items() if one == new)
        del vocabulary[spare]
        raw["model"]["merges"] = [m for m in raw["model"]["merges"] if "".join(m) != spare]
        vocabulary[word] = new
    inner = tokenizers.Tokenizer.from_str(json.dumps(raw))
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single=template, special_tokens=[("<s>", 1022), ("</s>", 1023)]
    )
    inner.save(str(path))


def test_what_a_tokenizer_adds_to_a_text_is_added(folder: Folder) -> None:
    """As `transformers` does; without `special_tokens` it is the text alone."""
    plain = tokenizer(folder).encode(TEXT)
    assert tokenizer(folder).encode(TEXT, special_tokens=False) == plain
    with_template(folder, "<s> $A </s>")
    changed = tokenizer(folder)
    alone = changed.encode(TEXT, special_tokens=False)
    assert changed.encode(TEXT) == [1022, *alone, 1023]
    assert changed.encode_start(TEXT) == [1022, *alone]
    assert changed.decode(changed.encode(TEXT)) == TEXT


def test_passages_begin_as_prompts_do_and_go_on(folder: Folder) -> None:
    with_template(folder, "<s> $A </s>")
    changed = tokenizer(folder)
    ids = load_passage("64:3", changed)
    assert len(ids) == 64
    assert ids[0] == 1022
    assert 1023 not in ids
    whole = read_document(document_of_seed(3))
    assert ids[1:] == changed.encode(whole[:2000], special_tokens=False)[:63]


def test_the_switch_leaves_the_text_alone(folder: Folder) -> None:
    with_template(folder, "<s> $A")

    def prompt_tokens(*words: str) -> int:
        line = ["generate", TEXT, "--model", str(folder.path), "--max-new", "2", "--json", "-"]
        result = CliRunner().invoke(app, [*line, *words])
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)["prompt_tokens"]

    assert prompt_tokens() == prompt_tokens("--no-special-tokens") + 1
    refused = CliRunner().invoke(app, ["generate", "--passage", "64", "--no-special-tokens"])
    assert refused.exit_code == 2
    assert "--no-special-tokens" in refused.stderr


def test_passages_of_the_stand_in_are_what_they_always_were() -> None:
    """Evidence names its passages by the ids."""
    ids = load_passage("256:3", load_model(TINY, "cpu").tokenizer)
    assert hash_tokens(ids) == "52725c4267d5055747d7c7b9f8537670ff8dce6a47bfe0ed34a199f1eb40c4c7"


def test_a_prompt_of_which_no_token_is_known(folder: Folder) -> None:
    path = folder.path / "tokenizer.json"
    raw = json.loads(path.read_text())
    raw["model"] = {"type": "BPE", "vocab": {"a": 1}, "merges": []}
    raw["pre_tokenizer"] = None
    path.write_text(json.dumps(raw))
    line = ["generate", "zzz", "--model", str(folder.path), "--max-new", "2"]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 2
    assert "knows no token of the prompt" in result.stderr


def test_a_tokenizer_on_which_the_library_panics(folder: Folder) -> None:
    path = folder.path / "tokenizer.json"
    raw = json.loads(path.read_text())
    raw["model"]["continuing_subword_prefix"] = "##"
    path.write_text(json.dumps(raw))
    assert "is no tokenizer" in folder.refused()
