"""What a command line of `strata model predict` asks about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What the command line asks about; empty or None where it leaves that open."""

    depths: Sequence[int]
    rings: Sequence[int]
    drafts: Sequence[int]
    budget_bytes: int | None
    max_new: int | None
    checkpoint: Path | None
