"""Text to ids and back, also while a text is still growing."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers

from strata.errors import CheckpointError
from strata.lm.config import LMConfig, parse_eos


class Tokenizer:
    """The checkpoint's own tokenizer."""

    def __init__(self, inner: tokenizers.Tokenizer, eos_ids: tuple[int, ...]) -> None:
        self._inner = inner
        self.eos_ids = eos_ids

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; special tokens are not added."""
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids` without special tokens."""
        return str(self._inner.decode(ids, skip_special_tokens=True))


class TextStream:
    """Turn a growing list of ids into text that never has to be taken back.

    A byte-level token can end inside a character, so text is held back while it ends in a
    replacement character.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._from = 0
        self._shown = ""

    def push(self, ids: list[int]) -> str:
        """Add `ids` and return the new text that is certain."""
        self._ids.extend(ids)
        text = self._tokenizer.decode(self._ids[self._from :])
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return ""
        return self._advance(text)

    def finish(self) -> str:
        """Return what is left, broken characters included."""
        return self._advance(self._tokenizer.decode(self._ids[self._from :]))

    def _advance(self, text: str) -> str:
        new = text[len(self._shown) :]
        # Decoding restarts at the last token, so that a long text costs no more than a short one.
        self._from = max(self._from, len(self._ids) - 1)
        self._shown = self._tokenizer.decode(self._ids[self._from :])
        return new


def load_tokenizer(folder: Path, config: LMConfig) -> Tokenizer:
    """Read `folder`/tokenizer.json; eos ids come from the config or the generation config."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no tokenizer.json; fetch the checkpoint again")
    try:
        inner = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path} is no tokenizer: {error}") from None
    if inner.get_vocab_size() > config.vocab:
        raise CheckpointError(
            f"{path} has {inner.get_vocab_size()} tokens, the model only {config.vocab}"
        )
    return Tokenizer(inner, config.eos_ids or _generation_eos(folder))


def _generation_eos(folder: Path) -> tuple[int, ...]:
    """Return the ids that `folder`/generation_config.json ends at; the file is optional."""
    path = folder / "generation_config.json"
    if not path.is_file():
        return ()
    try:
        return parse_eos(json.loads(path.read_text(encoding="utf-8")).get("eos_token_id"))
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
