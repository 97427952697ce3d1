"""A workload: what drafts gave on someone's own prompts, kept apart from what drafting costs.

It belongs to a model and a way to draft, and to no study: any study of the same way can be asked
what it is worth there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from strata.config import AUTO_WINDOW
from strata.errors import StoreError

SCHEMA = "strata.acceptance/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How the drafter runs; a study's costs hold for its own alone."""

    drafts: int = 1
    window_cells: int | None = None
    ring_cells: int | None = None
    """What a window of None is held within; None is the whole context where it fits."""
    select: str = "0"
    page_cells: int = 16
    temperature: float = 0.0
    max_new: int = 256
    auto_window: str = str(AUTO_WINDOW.word)
    """What a window of None was, as a policy table writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCount:
    """What became of the drafts behind one prompt; lists are by draft position."""

    name: str
    depth_cells: int
    rounds: int
    tokens: int
    tries: list[int]
    """Rounds in which the draft was verified and all before it had been accepted."""
    hits: list[int]

    @property
    def accepted(self) -> float:
        """Return the accepted drafts of a round."""
        return sum(self.hits) / self.rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The counts of all prompts under one name, and what they were measured with."""

    workload: str
    model_hash: str
    engine_version: str
    device: str
    conditions: Conditions
    created_at: str
    prompts: Sequence[PromptCount]

    def to_json(self) -> dict[str, Any]:
        """Return the workload as plain JSON."""
        return {"schema": SCHEMA, **asdict(self)}

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each prompt, as the database keeps them."""
        facts = asdict(self)
        prompts = facts.pop("prompts")
        return [{"record": SCHEMA, **facts, **prompt} for prompt in prompts]

    @classmethod
    def from_rows(cls, rows: Sequence[dict[str, Any]], *, origin: str) -> Workload:
        """Rebuild a workload from its rows; raise StoreError where they are no such thing."""
        try:
            first = rows[0]
            if {row["record"] for row in rows} != {SCHEMA}:
                raise StoreError(f"{origin}: expected record {SCHEMA!r}")
            names = ("name", "depth_cells", "rounds", "tokens", "tries", "hits")
            return cls(
                workload=first["workload"],
                model_hash=first["model_hash"],
                engine_version=first["engine_version"],
                device=first["device"],
                conditions=Conditions(**({"auto_window": "auto"} | first["conditions"])),
                created_at=first["created_at"],
                prompts=[PromptCount(**{name: row[name] for name in names}) for row in rows],
            )
        except (KeyError, TypeError, IndexError):
            raise StoreError(f"{origin}: a workload is damaged") from None
