"""Gather what a ring is chosen from, before any memory is reserved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from strata.config import Selection, tail_pages
from strata.errors import UsageError
from strata.policy.decision import Refusal
from strata.policy.fingerprint import Fingerprint, Mode
from strata.policy.table import PolicyTable
from strata.units import parse_cells

PolicyName = Literal["fixed", "depth", "adapt", "learned"]
POLICIES: tuple[PolicyName, ...] = ("fixed", "depth", "adapt", "learned")


@dataclass(frozen=True, slots=True, kw_only=True)
class RingRequest:
    """Ask for the ring of one session.

    `default_cells` is the default ring, already no more than the budget holds. The two `fits`
    are the largest rings, in whole pages, that the ledger holds beside every expert and beside
    the fewest expert slots; None where there is no budget and anything fits. `kv_resident` is
    the cap as the user gave it: 0 for the whole context, None for unset or ``auto``.
    """

    policy: PolicyName
    need_cells: int
    max_context_cells: int
    page_cells: int
    minimum_cells: int
    default_cells: int
    kv_resident: int | None = None
    fits_all_experts_cells: int | None = None
    fits_few_experts_cells: int | None = None
    mode: Mode = "off"
    fingerprint: Fingerprint | None = None
    table: PolicyTable | None = None
    table_origin: str = ""
    """The table's path; without a table, where one was looked for."""
    taken: str = ""
    """What the session takes from the table because nobody named it, in words."""
    refused: Refusal | None = None
    """Why the table was refused already, by a request that took from it what this one does not."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy must be one of {POLICIES}, got {self.policy!r}")
        if self.page_cells < 1 or self.need_cells < 1 or self.max_context_cells < 1:
            raise ValueError("page, need and max context must be at least one cell")
        if self.kv_resident is not None and self.kv_resident < 0:
            raise UsageError(f"--kv-resident: {self.kv_resident} is negative; {_RESIDENT_WORDS}")
        if self.default_cells < 0:
            raise UsageError(
                f"--kv-ring-default: {self.default_cells} is negative; name the default ring in "
                "cells, 0 for the minimum ring"
            )


_RESIDENT_WORDS = "name a number of cells, 0 for the whole context, or auto"


def parse_resident(text: str | None, *, name: str = "--kv-resident") -> int | None:
    """Return the cap that `text` names, None for unset or ``auto``; raise UsageError otherwise."""
    if text is None or text.strip().lower() == "auto":
        return None
    cells = parse_cells(text, name=name)
    if cells < 0:
        raise UsageError(f"{name}: {text!r} is negative; {_RESIDENT_WORDS}")
    return cells


def round_up(cells: int, page_cells: int) -> int:
    """Return the fewest whole pages that hold `cells`, in cells."""
    return -(-cells // page_cells) * page_cells


def round_down(cells: int, page_cells: int) -> int:
    """Return the most whole pages within `cells`, in cells."""
    return cells // page_cells * page_cells


def need_cells(*, prompt_cells: int, max_new: int, page_cells: int) -> int:
    """Return the need of a session: prompt, answer and one page, rounded up to a page."""
    return round_up(prompt_cells + max_new + page_cells, page_cells)


def minimum_ring_cells(selection: Selection, *, need_cells: int, page_cells: int) -> int:
    """Return the least ring that holds one row's selection and the tail (dense: the tail)."""
    pages = selection.pages(need_cells=need_cells, page_cells=page_cells)
    return (pages + tail_pages(page_cells)) * page_cells
