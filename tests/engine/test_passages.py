"""Passages: the start of a shipped document, the same on every machine."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest

from strata.errors import UsageError
from strata.lm import LanguageModel
from strata.passages import documents, load_passage, read_document


def test_a_passage_is_the_start_of_its_document(tiny: LanguageModel) -> None:
    tokenizer, count = tiny.tokenizer, len(documents())
    for seed in (0, 3, count - 1):
        short, long = (load_passage(f"{cells}:{seed}", tokenizer) for cells in (512, 4096))
        assert (len(short), len(long)) == (512, 4096)
        assert long[:512] == short
        assert read_document(documents()[seed]).startswith(tokenizer.decode(short[:-8]))
    assert load_passage("512", tokenizer) == load_passage("512:0", tokenizer)
    assert load_passage(f"512:{count + 3}", tokenizer) == load_passage("512:3", tokenizer)
    assert load_passage("1:5", tokenizer) == load_passage("2:5", tokenizer)[:1]


def test_passages_differ_and_both_splits_are_there(tiny: LanguageModel) -> None:
    """At least 12 passages at the small tiers and 8 at the large ones."""
    passages = {tuple(load_passage(f"512:{i}", tiny.tokenizer)) for i in range(len(documents()))}
    assert len(passages) == len(documents()) >= 20
    splits = Counter(document.split for document in documents())
    assert set(splits) == {"search", "fresh"}
    assert all(number >= 8 for number in splits.values())


def test_documents_are_those_of_the_index() -> None:
    for document in documents()[:2]:
        data = read_document(document).encode()
        assert document.sha256 == hashlib.sha256(data).hexdigest()


def test_more_than_a_document_has_is_refused(tiny: LanguageModel) -> None:
    with pytest.raises(UsageError, match="fewer than 100000000"):
        load_passage("100000000:1", tiny.tokenizer)
