"""Text to ids and back, also while a text is still growing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import tokenizers

from strata.errors import CheckpointError
from strata.lm.config import LMConfig, parse_eos
from strata.lm.decoders import Stage, decoding_stages, spec_of
from strata.lm.json_object import read_object


class Tokenizer:
    """The checkpoint's own tokenizer."""

    def __init__(self, inner: tokenizers.Tokenizer, eos_ids: tuple[int, ...]) -> None:
        self._inner = inner
        self.eos_ids = eos_ids
        self._decoder = spec_of(inner.decoder)
        added = inner.get_added_tokens_decoder().values()
        self._special = {token.content for token in added if token.special}
        self._token_of: dict[int, str | None] = {}

    def encode(self, text: str, *, special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`, within those that the tokenizer adds to a text."""
        return list(self._inner.encode(text, add_special_tokens=special_tokens).ids)

    def encode_start(self, text: str) -> list[int]:
        """Return the ids of a text that goes on: nothing is added behind it."""
        encoding = self._inner.encode(text)
        added_behind = takewhile(bool, reversed(encoding.special_tokens_mask))
        return list(encoding.ids[: len(encoding.ids) - sum(added_behind)])

    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids` without special tokens."""
        return str(self._inner.decode(ids, skip_special_tokens=True))

    def stream(self) -> TextStream:
        """Return a decoder of ids that come one after another."""
        return TextStream(self._tokens, decoding_stages(self._decoder))

    def _tokens(self, ids: list[int]) -> list[str]:
        """Return the tokens of which `decode` makes text: neither special nor unknown."""
        tokens = []
        for one in ids:
            if one not in self._token_of:
                token = self._inner.id_to_token(one)
                self._token_of[one] = None if token in self._special else token
            if (known := self._token_of[one]) is not None:
                tokens.append(known)
        return tokens


class TextStream:
    """Turn a growing list of ids into text that never has to be taken back.

    All pieces together are what `Tokenizer.decode` makes of all ids. An id costs the same
    however long the text is.
    """

    def __init__(self, tokens_of: Callable[[list[int]], list[str]], stages: list[Stage]) -> None:
        self._tokens_of = tokens_of
        self._stages = stages

    def push(self, ids: list[int]) -> str:
        """Add `ids` and return the new text that is certain."""
        tokens = self._tokens_of(ids)
        for stage in self._stages:
            tokens = stage.push(tokens)
        return "".join(tokens)

    def finish(self) -> str:
        """Return what is left, broken characters included."""
        tokens: list[str] = []
        for stage in self._stages:
            tokens = stage.push(tokens) + stage.finish()
        return "".join(tokens)


def load_tokenizer(folder: Path, config: LMConfig) -> Tokenizer:
    """Read `folder`/tokenizer.json; the ids that end a text are `eos_ids`."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no tokenizer.json; fetch the checkpoint again")
    try:
        inner = tokenizers.Tokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exception, and panics
        raise CheckpointError(f"{path} is no tokenizer: {error}") from None
    token, last = max(inner.get_vocab().items(), key=lambda item: item[1], default=("", -1))
    if last >= config.vocab:
        raise CheckpointError(
            f"{path} has the token {token[:40]!r} as id {last}, the model only "
            f"{config.vocab} tokens (vocab_size)"
        )
    # What the library was last used with (training, batches) is no part of a prompt.
    inner.no_truncation()
    inner.no_padding()
    if getattr(inner.model, "dropout", None):
        inner.model.dropout = None
    return Tokenizer(inner, _eos_ids(folder, config))


def _eos_ids(folder: Path, config: LMConfig) -> tuple[int, ...]:
    """Return the ids that end a text: generation_config.json's, else those of the config.

    The file is optional, but one that cannot be read is not passed over.
    """
    path = folder / "generation_config.json"
    if not path.exists() and not path.is_symlink():
        return config.eos_ids
    try:
        named = parse_eos(read_object(path).get("eos_token_id"), config.vocab)
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return named or config.eos_ids
