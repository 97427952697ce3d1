"""The held-out texts that ship as prompts: natural, licence-clean, never filler."""

from __future__ import annotations

import json
import lzma
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from strata.errors import UsageError
from strata.units import parse_cells

if TYPE_CHECKING:
    from strata.lm.tokenizer import Tokenizer

FOLDER = Path(__file__).parent / "data" / "passages"
Split = Literal["search", "fresh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One held-out document: files of one package in path order."""

    id: str
    file: str
    split: Split
    sha256: str


@lru_cache
def documents() -> tuple[Document, ...]:
    """Return the shipped documents in the order that seeds count."""
    entries = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
    keys = ("id", "file", "split", "sha256")
    return tuple(Document(**{key: entry[key] for key in keys}) for entry in entries)


@lru_cache(maxsize=4)
def read_document(document: Document) -> str:
    """Return the text of `document`."""
    return lzma.decompress((FOLDER / document.file).read_bytes()).decode("utf-8")


def parse_passage(spec: str) -> tuple[int, int]:
    """Return the cells and the seed of ``CELLS[:SEED]``; raise UsageError for what is none."""
    size, _, seed = spec.partition(":")
    cells = parse_cells(size, name="--passage")
    if cells < 1 or not re.fullmatch(r"[0-9]{0,18}", seed):
        raise UsageError(f"--passage: {spec!r} is not CELLS or CELLS:SEED, like 4096:3")
    return cells, int(seed or 0)


def document_of_seed(seed: int) -> Document:
    """Return the document that a seed names; seeds count documents and wrap around."""
    listed = documents()
    return listed[seed % len(listed)]


def load_passage(spec: str, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of passage ``CELLS[:SEED]``: the first CELLS of document SEED.

    They begin with what the tokenizer puts before any text. Seeds count documents and wrap
    around. Raises UsageError for a spec that is none and for a document that is shorter.
    """
    cells, seed = parse_passage(spec)
    document = document_of_seed(seed)
    text = read_document(document)
    # A token is at most a few characters, so a prefix is enough; the cut may split the last word.
    ids: list[int] = []
    characters = cells * 6
    while len(ids) < cells:
        ids = tokenizer.encode_start(text[:characters])
        if characters >= len(text):
            break
        characters *= 2
    if len(ids) < cells:
        raise UsageError(
            f"passage {spec}: document {document.id} has {len(ids)} cells with this tokenizer, "
            f"fewer than {cells}; ask for at most that many"
        )
    return ids[:cells]
