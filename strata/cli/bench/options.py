"""Switches and lists that the benches share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

from strata.bench.spread import MIN_REPEATS
from strata.cli.session_options import PREFETCH, one_of
from strata.config import MAX_DRAFTS, Prefetch
from strata.errors import UsageError
from strata.units import parse_bytes, parse_cells

MAX_COUNT = 1 << 16
T = TypeVar("T")

Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write one JSON object; '-' is stdout."),
]
Model = Annotated[
    Path | None, typer.Option(help="Checkpoint folder.", show_default="the bundled model")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Threads = Annotated[
    int | None, typer.Option(help="CPU threads that decode; prompts take all.", show_default="1")
]
Seed = Annotated[int, typer.Option(min=0, help="Which bundled passage is the prompt.")]
Repeats = Annotated[
    int, typer.Option(min=MIN_REPEATS, help="Repeats that a figure is the median of.")
]
Depths = Annotated[
    str, typer.Option("--depth", metavar="LIST", help="Cells of the prompt, like 1K,32K.")
]
Budgets = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help="Device memory for weights, ring and experts, like none,64MiB.",
    ),
]
DEFAULT_REPEATS = MIN_REPEATS


def parse_list(text: str, parse: Callable[[str], T]) -> list[T]:
    """Return what `parse` makes of each word of `text` between commas, each value once."""
    return list(dict.fromkeys(parse(word.strip()) for word in text.split(",")))


def parse_count(word: str, *, name: str, least: int = 0, most: int = MAX_COUNT) -> int:
    """Return a count that the switch `name` spells; raise UsageError outside least to most."""
    count = parse_cells(word, name=name)
    if not least <= count <= most:
        raise UsageError(f"{name}: {word!r} is outside {least} to {most}")
    return count


def parse_depth(word: str) -> int:
    """Return the cells of a prompt; raise UsageError for none."""
    cells = parse_cells(word, name="--depth")
    if cells < 1:
        raise UsageError(f"--depth: {word!r} is no number of cells above zero")
    return cells


def parse_drafts(word: str) -> int | Literal["auto"]:
    """Return the drafts of a round; raise UsageError for more than a window holds."""
    if word.lower() == "auto":
        return "auto"
    if not word.isdecimal() or int(word) > MAX_DRAFTS:
        raise UsageError(f"--spec: {word!r} is neither 0 to {MAX_DRAFTS} drafts nor auto")
    return int(word)


def parse_ring(word: str) -> int | None:
    """Return the cap of a ring, None for auto; raise UsageError for a negative one."""
    if word.lower() == "auto":
        return None
    cells = parse_cells(word, name="--ring")
    if cells < 0:
        raise UsageError(f"--ring: {word!r} is negative; 0 keeps the whole context resident")
    return cells


def parse_prefetch(word: str) -> Prefetch:
    """Return what is fetched ahead; raise UsageError for a word that says nothing of the kind."""
    return one_of(PREFETCH, word, name="--prefetch")


def parse_budget(word: str) -> int | None:
    """Return the bytes of a budget, None for none."""
    return None if word.lower() == "none" else parse_bytes(word, name="--vram-budget")
