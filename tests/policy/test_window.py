"""The drafter's window: what a rule reaches, how a table writes it, what a session takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.config import AUTO_WINDOW, KvConfig, SessionConfig, SpecConfig, Window
from strata.session import create_session


@given(st.builds(Window, cells=st.integers(0, 200_000), within_ring=st.booleans()))
def test_a_table_reads_back_what_it_wrote(window: Window) -> None:
    assert Window.of_word(window.word) == window


@pytest.mark.parametrize("word", ["", "ring", "min(ring, 0)", "min(ring, 1) ", "AUTO", "64"])
def test_what_is_no_rule_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="names no window"):
        Window.of_word(word)


def test_auto_in_a_table_stays_the_ring() -> None:
    ring = Window.of_word("auto")
    assert ring != AUTO_WINDOW
    assert ring.reach(pool_cells=8_192, max_context=9_000) == 8_192


@pytest.mark.parametrize(
    ("resident", "told", "reach"),
    [(None, None, 2_048), (64, None, 64), (4_096, None, 2_048), (64, 128, 128), (64, 0, 4_048)],
)
def test_a_session_that_is_told_nothing_reads_what_was_measured_best(
    tiny, resident, told, reach
) -> None:
    config = SessionConfig(kv=KvConfig(resident_cells=resident), spec=SpecConfig(window_cells=told))
    session = create_session(tiny, config, prompt_cells=4_000, max_new=32, environ={})
    assert session.mtp_window_cells == reach
    session.close()
