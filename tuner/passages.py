"""Hash the passages of a plan: what a study's numbers were measured on."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from strata.errors import StrataError

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
