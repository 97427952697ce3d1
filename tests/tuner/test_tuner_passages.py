"""A text is one sample, whatever it is called."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata.passages import documents
from strata.tuner.passages import same_texts, text_of

COUNT = len(documents())


def test_seeds_that_wrap_around_are_one_text() -> None:
    assert same_texts(["512:1", f"512:{COUNT + 1}", "512:2", f"512:{2 * COUNT + 1}"]) == [
        ("512:1", f"512:{COUNT + 1}", f"512:{2 * COUNT + 1}")
    ]
    assert same_texts(["512:1", "4096:1", "512:2"]) == []
    assert same_texts(["512:1", "512:1"]) == [], "a name that stands twice is one passage"
    assert same_texts(["512", "0512:00", "512:0"]) == [("512", "0512:00", "512:0")]


def test_what_is_no_passage_stands_for_itself() -> None:
    assert text_of("alone") == "alone"
    assert same_texts(["alone", "another"]) == []


@given(st.lists(st.integers(0, 5 * COUNT), unique=True, max_size=40))
def test_every_seed_is_in_the_group_of_its_document(seeds: list[int]) -> None:
    groups = same_texts(f"64:{seed}" for seed in seeds)
    for group in groups:
        assert len({int(name.partition(":")[2]) % COUNT for name in group}) == 1
    twice = len(seeds) - len({seed % COUNT for seed in seeds})
    assert sum(len(group) - 1 for group in groups) == twice
