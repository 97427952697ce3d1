"""Whatever the decoder, the pieces of a stream are what the library decodes all ids to."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from strata.config import SamplingParams
from strata.generation import Collector
from strata.lm.tokenizer import Tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in (0x41, 0x0A, *"é😀".encode(), 0xFF, 0xC3, 0xED, 0xA0, 0x80)]
BYTE_LEVEL = ["Ġ", "Ċ", "Ã", "©", "ðŁ", "ĺ", "Ģ", "í", "ł", "Ġthe", "ÿ", "â", "Ĥ¬"]
WORDS = ["a", "ab", "▁", "▁▁", "▁a", "a▁b", "##b", "##", "b</w>", "</w>", "|", "<pad>", " ", "  ",
         " .", ".", "n't", " n't", " '", "'s", "é", "€", "😀", "�", "<0x", "41>", "<0xZZ>",
         "<0x+5>", "<0x4>", "X", "XY", "Y", "\n"]  # fmt: skip
PIECES = [*WORDS, *BYTES, *BYTE_LEVEL]
ADDED = [
    AddedToken("<s>", special=True),
    AddedToken("</s>", special=True, lstrip=True),
    AddedToken("<tool>", special=False),
    AddedToken(" ▁!", special=False, normalized=True),
]

PARTS: dict[str, Any] = {
    "byte level": decoders.ByteLevel(),
    "metaspace": decoders.Metaspace(),
    "metaspace never": decoders.Metaspace(prepend_scheme="never"),
    "metaspace first": decoders.Metaspace(prepend_scheme="first"),
    "word piece": decoders.WordPiece(),
    "word piece as it is": decoders.WordPiece(prefix="", cleanup=False),
    "bpe": decoders.BPEDecoder(),
    "ctc": decoders.CTC(),
    "ctc as it is": decoders.CTC(cleanup=False),
    "byte fallback": decoders.ByteFallback(),
    "fuse": decoders.Fuse(),
    "strip left": decoders.Strip(" ", 1, 0),
    "strip much": decoders.Strip("a", 3, 0),
    "strip right": decoders.Strip(" ", 0, 2),
    "strip both": decoders.Strip("▁", 1, 1),
    "replace": decoders.Replace("▁", " "),
    "replace long": decoders.Replace("XY", "-"),
    "replace with more": decoders.Replace("aa", "a▁a"),
    "replace nothing": decoders.Replace("", "x"),
    "replace pattern": decoders.Replace(Regex("^ |a+b"), "_"),
}
CHAINS = {
    "llama": ["replace", "byte fallback", "fuse", "strip left"],
    "gemma": ["replace", "byte fallback", "fuse"],
    "runs first": ["byte fallback", "metaspace"],
    "clean words": ["word piece", "fuse", "strip right"],
    "replace behind fuse": ["fuse", "replace", "replace long", "strip both"],
    "pattern behind fuse": ["byte fallback", "fuse", "replace pattern", "strip left"],
    "bytes behind bytes": ["byte level", "byte fallback", "byte level"],
}
IDS = st.integers(0, len(PIECES) + len(ADDED) + 2)  # a few that no token has


def tokenizer_of(decoder: Any) -> Tokenizer:
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(PIECES))}
    inner = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    inner.add_tokens(ADDED)
    if decoder is not None:
        inner.decoder = decoder
    return Tokenizer(inner, ())


def check(tokenizer: Tokenizer, ids: list[int], sizes: list[int]) -> None:
    try:
        whole = tokenizer.decode(ids)
    except BaseException as error:
        # Strip panics where nothing is left of a token: then there is nothing to be equal to.
        assert type(error).__name__ == "PanicException"  # noqa: PT017
        whole = None
    stream, shown, at, step = tokenizer.stream(), "", 0, 0
    while at < len(ids):
        size = sizes[step % len(sizes)]
        shown += stream.push(ids[at : at + size])
        at, step = at + size, step + 1
        assert whole is None or whole.startswith(shown), "text was shown that had to be taken back"
    shown += stream.finish()
    assert whole is None or shown == whole


SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@pytest.mark.parametrize("name", ["none", *PARTS, *CHAINS])
def test_pieces_are_what_all_ids_decode_to(name: str) -> None:
    chain = CHAINS.get(name)
    decoder = decoders.Sequence([PARTS[part] for part in chain]) if chain else PARTS.get(name)
    tokenizer = tokenizer_of(decoder)

    @settings(max_examples=50, database=None)
    @given(ids=st.lists(IDS, max_size=30), sizes=SIZES)
    def holds(ids: list[int], sizes: list[int]) -> None:
        check(tokenizer, ids, sizes)

    holds()


@settings(max_examples=150)
@given(
    names=st.lists(st.sampled_from([*PARTS]), max_size=4),
    nested=st.booleans(),
    ids=st.lists(IDS, max_size=30),
    sizes=SIZES,
)
def test_any_chain_of_stages(names: list[str], nested: bool, ids: list[int], sizes) -> None:
    parts = [PARTS[name] for name in names]
    if nested:
        parts = [*parts[:1], decoders.Sequence(parts[1:])]
    check(tokenizer_of(decoders.Sequence(parts)), ids, sizes)


def test_any_bytes_stream_as_the_library_spells_them() -> None:
    """Broken UTF-8 of every kind, cut anywhere."""
    edges = [0x41, 0x80, 0x90, 0xA0, 0xBF, 0xC1, 0xC2, 0xE0, 0xE1, 0xED, 0xF0, 0xF1, 0xF4, 0xFF]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=ord)
    inner = tokenizers.Tokenizer(models.WordLevel({c: i for i, c in enumerate(alphabet)}, "a"))
    inner.decoder = decoders.ByteLevel()
    tokenizer = Tokenizer(inner, ())
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spelled = {byte: chr(byte) for byte in printable}
    rest = (byte for byte in range(256) if byte not in spelled)
    spelled |= {byte: chr(256 + i) for i, byte in enumerate(rest)}
    of = {byte: inner.token_to_id(spelled[byte]) for byte in range(256)}
    for first in edges:
        for second in edges:
            for third in edges:
                check(tokenizer, [of[first], of[second], of[third], of[0x80]], [1])


@pytest.fixture(scope="module", params=["llama", "gemma", "word piece", "byte level"])
def trained(request: pytest.FixtureRequest) -> Tokenizer:
    """Return a tokenizer that learned its pieces, as those of published models are made."""
    text = ["def read(path):", "a lot of words, and some more words.", "über größe né", "  x  y"]
    kind = request.param
    special = ["<s>", "</s>"]
    if kind == "word piece":
        inner = tokenizers.Tokenizer(models.WordPiece(unk_token="<s>"))
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        inner.train_from_iterator(text, trainers.WordPieceTrainer(special_tokens=special))
        inner.decoder = decoders.WordPiece()
    elif kind == "byte level":
        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet)
        inner.train_from_iterator(text, trainer)
        inner.decoder = decoders.ByteLevel()
    else:
        inner = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<s>"))
        inner.normalizer = normalizers.Sequence(
            [
                *([normalizers.Prepend("▁")] if kind == "llama" else []),
                normalizers.Replace(" ", "▁"),
            ]
        )
        every = [f"<0x{byte:02X}>" for byte in range(256)]
        inner.train_from_iterator(text, trainers.BpeTrainer(special_tokens=[*special, *every]))
        inner.decoder = decoders.Sequence([PARTS[part] for part in CHAINS[kind]])
    raw = json.loads(inner.to_str())
    raw["added_tokens"] = [one for one in raw["added_tokens"] if one["content"] in special]
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(raw)), ())


@settings(max_examples=40)
@given(text=st.text(st.characters(codec="utf-8") | st.sampled_from("aü😀€ \n▁."), max_size=30))
@example(text="😀😀")
@example(text=" two  spaces é😀 end ")
def test_text_of_a_trained_tokenizer_comes_back_in_pieces(trained: Tokenizer, text: str) -> None:
    ids = trained.encode(text)
    check(trained, ids, [1])
    check(trained, ids[1:], [3, 1])


def test_text_is_not_held_back_longer_than_it_must_be() -> None:
    chain = decoders.Sequence([PARTS[part] for part in CHAINS["llama"]])
    tokenizer = tokenizer_of(chain)
    stream = tokenizer.stream()

    def push(*tokens: str) -> str:
        return stream.push([tokenizer._inner.token_to_id(token) for token in tokens])

    assert push("▁a", "a▁b") == "aa b"
    assert push("<0xC3>") == ""
    assert push("<0xA9>", "</s>") == "", "a byte that follows could still make both unreadable"
    assert push("<tool>") == "é<tool>"
    assert push("<0xFF>", "<0xC3>") == ""
    assert stream.finish() == "\N{REPLACEMENT CHARACTER}" * 2


@pytest.mark.parametrize("name", ["llama", "pattern behind fuse", "bpe", "byte level"])
def test_stop_strings_are_looked_for_in_the_decoded_text(name: str) -> None:
    """Also where they come to light at the end alone: then the generation ended by one."""
    chain = CHAINS.get(name, [name])
    tokenizer = tokenizer_of(decoders.Sequence([PARTS[part] for part in chain]))
    words = ["a", "Ã", "©", "X"] if name == "byte level" else ["a", "<0xC3>", "<0xA9>"]
    ids = [tokenizer._inner.token_to_id(word) for word in words]
    text = tokenizer.decode(ids)
    for stop in (text[1:], text[-1], text):
        shown: list[str] = []
        collector = Collector(SamplingParams(stop=(stop,), max_new=9), tokenizer, shown.append)
        for one in ids:
            if not collector.take([one]):
                break
        collector.finish()
        assert collector.out.text == "".join(shown) == text[: text.index(stop)]
        assert collector.out.stopped == "stop"


def test_the_parts_are_all_that_the_library_has() -> None:
    """A decoder that a later version adds must be thought of here."""
    known = {json.loads(part.__getstate__())["type"] for part in PARTS.values()}
    base = {"Decoder", "DecodeStream", "Sequence"}
    assert {name for name in vars(decoders) if name[0].isupper()} - base == known
