"""Say what the passages of a plan are: their hash, and which of them are one text.

The passage is the sample, so a text that stands under two names would count twice: seeds wrap
around, and seed 29 of 28 documents is seed 1 again.
"""

from __future__ import annotations

import hashlib
import struct
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from strata.errors import StrataError, UsageError

if TYPE_CHECKING:
    from strata.lm.tokenizer import Tokenizer
    from strata.tuner.study import StudyRecord


def hash_passages(names: Iterable[str], tokenizer: Tokenizer) -> str:
    """Return the SHA-256 of some passages' names and ids; raise UsageError for one that is none."""
    from strata.passages import load_passage

    hashed = hashlib.sha256()
    for name in names:
        ids = load_passage(name, tokenizer)
        hashed.update(f"{name}\0".encode() + struct.pack(f"<{len(ids)}i", *ids))
    return hashed.hexdigest()


def text_of(name: str) -> str:
    """Return the identity of a passage's text; a name that is no passage stands for itself.

    Two passages of as many cells have one identity where they begin one document.
    """
    from strata.passages import document_of_seed, parse_passage

    try:
        cells, seed = parse_passage(name)
    except UsageError:
        return name
    return f"{cells}:{document_of_seed(seed).sha256}"


def documents_of(seeds: Iterable[int]) -> frozenset[str]:
    """Return the identities of the documents that some seeds name, whatever their length."""
    from strata.passages import document_of_seed

    return frozenset(document_of_seed(seed).sha256 for seed in seeds)


def same_texts(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the groups of different names that are one text, in the order of `names`."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        groups[text_of(name)].append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def passages_hash_here(study: StudyRecord) -> str | None:
    """Return the hash of a study's passages as they are here, None where its model is not."""
    from strata.lm import bundled_model_path
    from strata.lm.checkpoint import hash_checkpoint
    from strata.lm.config import load_config
    from strata.lm.tokenizer import load_tokenizer

    try:
        plan = study.read_plan()
        folder = bundled_model_path() if plan.model == "bundled" else Path(plan.model)
        if hash_checkpoint(folder) != study.model_hash:
            return None
        return hash_passages(plan.passage_names(), load_tokenizer(folder, load_config(folder)))
    except (StrataError, OSError):
        return None
