"""On and off words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.env import OFF_WORDS, ON_WORDS, parse_switch, read_switch, read_text
from strata.errors import UsageError


@pytest.mark.parametrize("word", ["1", "true", "yes", "on", "TRUE", "Yes", "oN", " on "])
def test_on_words(word):
    assert read_switch({"X": word}, "X")


@pytest.mark.parametrize("word", ["", "0", "false", "no", "off", "FALSE", "No", "oFF", "  "])
def test_off_words(word):
    assert not read_switch({"X": word}, "X")


def test_unset_is_off():
    assert not read_switch({}, "X")
    assert read_text({}, "X") is None
    assert read_text({"X": "  "}, "X") is None
    assert read_text({"X": " a "}, "X") == "a"


@given(st.text().filter(lambda text: text.strip().lower() not in ON_WORDS + OFF_WORDS))
def test_any_other_word_is_an_error_that_names_the_variable(word):
    with pytest.raises(UsageError, match="STRATA_X: "):
        parse_switch(word, name="STRATA_X")
