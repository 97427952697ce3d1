"""Decode a growing list of tokens into text that never has to be taken back.

A tokenizer's decoder is a chain of stages: each turns a list of tokens into another. A stage here
does what its namesake in `tokenizers` does, but gives out at once what no later token can change:

- Replace, Strip, Metaspace, WordPiece and CTC look at a token and at whether it is the first, or
  the same as the one before; BPEDecoder at whether it is the last, so it is one token late.
- ByteFallback turns a run of byte tokens into text or, where any of it is no UTF-8, into one
  replacement character a byte. So a run is held back until it ends.
- Fuse and ByteLevel make one token of all; what follows them sees that token grow.

Any other stage, and a regular expression behind Fuse, may look at the whole text: then all of it
is held back to the end, and the library decodes it. Each token is looked at once.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from typing import Any, Protocol

import tokenizers
from tokenizers.decoders import Decoder

from strata.stops import open_end

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_BYTE = re.compile("<0x([0-9A-Fa-f]{2}|\\+[0-9A-Fa-f])>")


class Stage(Protocol):
    """Turn tokens, or parts of the one token that all were made into, into others."""

    def push(self, tokens: list[str]) -> list[str]:
        """Return what is certain now that `tokens` follow."""
        ...

    def finish(self) -> list[str]:
        """Return the rest, now that nothing follows."""
        ...


class _Each:
    """Tokens one by one; the first may be another case."""

    def __init__(
        self, rest: Callable[[str], str], first: Callable[[str], str] | None = None
    ) -> None:
        self._rest, self._next = rest, first or rest

    def push(self, tokens: list[str]) -> list[str]:
        out = []
        for token in tokens:
            out.append(self._next(token))
            self._next = self._rest
        return out

    def finish(self) -> list[str]:
        return []


class _Late:
    """Tokens one by one, of which the last is another case."""

    def __init__(self, decoder: Decoder) -> None:
        self._decode = decoder.decode
        self._held: list[str] = []

    def push(self, tokens: list[str]) -> list[str]:
        all_tokens = self._held + tokens
        self._held = all_tokens[-1:]
        return [self._decode([token, ""]) for token in all_tokens[:-1]]

    def finish(self) -> list[str]:
        return [self._decode([token]) for token in self._held]


class _Distinct:
    """Tokens that differ from the one before; what they turn to is left out where empty (CTC)."""

    def __init__(self, decoder: Decoder) -> None:
        self._decode = decoder.decode
        self._before: str | None = None

    def push(self, tokens: list[str]) -> list[str]:
        out = []
        for token in tokens:
            if token != self._before:
                out.append(self._decode([token]))
            self._before = token
        return [text for text in out if text]

    def finish(self) -> list[str]:
        return []


class _ByteRuns:
    """Runs of byte tokens as text (ByteFallback)."""

    def __init__(self) -> None:
        self._run = bytearray()

    def push(self, tokens: list[str]) -> list[str]:
        out = []
        for token in tokens:
            if byte := _BYTE.fullmatch(token):
                self._run.append(int(byte[1], 16))
            else:
                out += [*self.finish(), token]
        return out

    def finish(self) -> list[str]:
        run, self._run = bytes(self._run), bytearray()
        if not run:
            return []
        try:
            return [run.decode("utf-8")]
        except UnicodeDecodeError:
            return [REPLACEMENT] * len(run)


class _Bytes:
    """Bytes that stand as one character each, as text (ByteLevel)."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, tokens: list[str]) -> list[str]:
        return [self._decoder.decode(b"".join(map(_spell, tokens)))]

    def finish(self) -> list[str]:
        return [self._decoder.decode(b"", final=True)]


def _spell(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """Return the byte of each character of GPT-2's alphabet; printable ones spell themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(256 + i): byte for i, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted


_BYTE_OF = _byte_alphabet()


class _Ends:
    """One growing token without some of one character at its two ends (Strip)."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content, self._start, self._stop = content, start, stop
        self._held = ""

    def push(self, tokens: list[str]) -> list[str]:
        text = self._held + "".join(tokens)
        while self._start and text:
            self._start -= 1
            if not text.startswith(self._content):
                self._start = 0
                break
            text = text[1:]
        ends = len(text) - len(text.rstrip(self._content))
        cut = len(text) - min(ends, self._stop)
        self._held = text[cut:]
        return [text[:cut]]

    def finish(self) -> list[str]:
        return []


class _Swap:
    """One growing token with one text in place of another (Replace)."""

    def __init__(self, pattern: str, content: str) -> None:
        self._pattern, self._content = pattern, content
        self._held = ""

    def push(self, tokens: list[str]) -> list[str]:
        *done, last = (self._held + "".join(tokens)).split(self._pattern)
        cut = len(last) - open_end(last, self._pattern)
        self._held = last[cut:]
        return [self._content.join([*done, last[:cut]])]

    def finish(self) -> list[str]:
        return [self._held]


class _Whole:
    """All tokens at the end, as the library decodes them."""

    def __init__(self, decoder: Decoder, *, fused: bool) -> None:
        self._decode, self._fused = decoder.decode, fused
        self._tokens: list[str] = []

    def push(self, tokens: list[str]) -> list[str]:
        self._tokens += tokens
        return []

    def finish(self) -> list[str]:
        return [self._decode(["".join(self._tokens)] if self._fused else self._tokens)]


def _token_stage(spec: dict[str, Any]) -> Stage | None:
    """Return the stage that `spec` is for separate tokens; None for one that is not known."""
    kind = spec["type"]
    if kind == "ByteFallback":
        return _ByteRuns()
    if kind == "ByteLevel":
        return _Bytes()
    if kind == "Strip":
        ends = spec["content"], spec["start"], spec["stop"]
        return _Each(lambda token: "".join(_Ends(*ends).push([token])))
    decoder = _decoder_of(spec)
    decode = decoder.decode
    if kind == "Replace":
        return _Each(lambda token: decode([token]))
    if kind in ("Metaspace", "WordPiece"):
        return _Each(lambda token: decode(["", token]), lambda token: decode([token]))
    if kind == "BPEDecoder":
        return _Late(decoder)
    if kind == "CTC":
        return _Distinct(decoder)
    return None


def _fused_stage(spec: dict[str, Any]) -> Stage | None:
    """Return the stage that `spec` is for one growing token; None where it may need all of it."""
    if spec["type"] == "Strip":
        return _Ends(spec["content"], spec["start"], spec["stop"])
    pattern = spec.get("pattern", {}).get("String")
    if spec["type"] == "Replace" and pattern:
        return _Swap(pattern, spec["content"])
    return None


def decoding_stages(spec: dict[str, Any] | None) -> list[Stage]:
    """Return fresh stages that do together what the decoder `spec` does."""
    if spec is None:
        return [_Each(lambda token: f" {token}", lambda token: token)]
    parts, stages, fused = _flat(spec), list[Stage](), False
    for i, part in enumerate(parts):
        if part["type"] == "Fuse":
            fused = True
            continue
        stage = _fused_stage(part) if fused else _token_stage(part)
        if stage is None:
            rest = {"type": "Sequence", "decoders": parts[i:]}
            return [*stages, _Whole(_decoder_of(rest), fused=fused)]
        stages.append(stage)
        fused = fused or part["type"] == "ByteLevel"
    return stages


def _flat(spec: dict[str, Any]) -> list[dict[str, Any]]:
    if spec["type"] != "Sequence":
        return [spec]
    return [part for inner in spec["decoders"] for part in _flat(inner)]


def _shell() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer(tokenizers.models.WordLevel({}, unk_token=""))


def spec_of(decoder: Decoder | None) -> dict[str, Any] | None:
    """Return what a tokenizer's file says of `decoder`."""
    shell = _shell()
    if decoder is not None:
        shell.decoder = decoder
    spec: dict[str, Any] | None = json.loads(shell.to_str())["decoder"]
    return spec


def _decoder_of(spec: dict[str, Any]) -> Decoder:
    """Return the library's decoder of `spec`, the inverse of `spec_of`."""
    whole = {**json.loads(_shell().to_str()), "decoder": spec}
    return tokenizers.Tokenizer.from_str(json.dumps(whole)).decoder
