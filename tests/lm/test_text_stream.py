"""Streamed text is the decoded text, however tokens cut characters."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strata.lm import LanguageModel
from strata.stops import StopMatcher

TEXTS = st.text(
    st.characters(codec="utf-8") | st.sampled_from("aé€😀\N{REPLACEMENT CHARACTER} \n"), max_size=60
)


@pytest.fixture(scope="module")
def ids_within(tiny: LanguageModel):
    """Return how many ids the tokenizer knows."""
    return tiny.tokenizer._inner.get_vocab_size()


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, sizes=st.lists(st.integers(1, 5), min_size=1, max_size=30))
@example(text="😀😀", sizes=[1])
@example(text="\N{REPLACEMENT CHARACTER}", sizes=[1])
def test_text_arrives_whole(tiny: LanguageModel, text: str, sizes: list[int]) -> None:
    ids = tiny.tokenizer.encode(text)
    stream = tiny.tokenizer.stream()
    shown, at = "", 0
    while at < len(ids):
        size = sizes[at % len(sizes)]
        shown += stream.push(ids[at : at + size])
        at += size
        assert text.startswith(shown), "text was shown that had to be taken back"
    shown += stream.finish()
    assert shown == text == tiny.tokenizer.decode(ids)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_ids_stream_to_what_they_decode_to(tiny: LanguageModel, ids_within, data) -> None:
    """Also special tokens, halves of characters and bytes that belong to none."""
    one = st.integers(0, min(300, ids_within) - 1) | st.integers(0, ids_within - 1)
    ids = data.draw(st.lists(one, max_size=40))
    stream = tiny.tokenizer.stream()
    shown = "".join(stream.push([one]) for one in ids) + stream.finish()
    assert shown == tiny.tokenizer.decode(ids)


STOPS = st.lists(st.text("ab\n", max_size=4), max_size=3).map(tuple)


@settings(max_examples=400)
@given(text=st.text("ab\n", max_size=40), stops=STOPS, cuts=st.lists(st.integers(1, 4)))
def test_no_part_of_a_stop_string_is_shown(text: str, stops: tuple[str, ...], cuts) -> None:
    matcher = StopMatcher(stops)
    shown, at, cuts = "", 0, cuts or [3]
    step = 0
    while at < len(text):
        size = cuts[step % len(cuts)]
        step += 1
        shown += matcher.push(text[at : at + size])
        at += size
        assert not any(stop in shown for stop in stops if stop)
    end = shown + matcher.finish()
    real = [stop for stop in stops if stop]
    first = min((text.find(stop) for stop in real if stop in text), default=None)
    if first is None:
        assert (end, matcher.hit) == (text, False)
    else:
        # A shorter stop may end the text before a longer one that began earlier is complete.
        assert matcher.hit
        assert text.startswith(end)
        assert len(end) >= first
        assert any(text.startswith(stop, len(end)) for stop in real)


def test_stop_strings_across_pieces() -> None:
    matcher = StopMatcher(("\nEND", "xx"))
    pieces = ["a\n", "E", "x", "\nEN", "D after", "more"]
    assert [matcher.push(piece) for piece in pieces] == ["a", "", "\nE", "x", "", ""]
    assert matcher.hit
    assert matcher.finish() == ""
