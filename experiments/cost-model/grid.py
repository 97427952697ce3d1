"""Read the results of experiments/trade/run.py as the trial frame that the cost model takes.

A line is one configuration on one passage. The trade runs have no pairs, so each line is a pair of
its own, and nothing here can be used for a verdict.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from strata.config import PAGE_CELLS
from strata.models.frame import COLUMNS

NEW_TOKENS = 128
SHARED_CELLS = 132_096
MIB = 1 << 20


def read_grid(
    paths: Sequence[Path], *, context: str = "own", default_seed: int = 1
) -> pd.DataFrame:
    """Return one row for each configuration that fitted its budget and said the same tokens.

    `context` is ``own`` or ``shared``, what sessions reserve for; files may hold both.
    """
    texts = [path.read_text(encoding="utf-8") for path in paths]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    usable = [
        line
        for line in lines
        if "error" not in line
        and line.get("same_tokens", True)
        and line.get("context", "own") == context
    ]
    rows = [_row(number, line, default_seed) for number, line in enumerate(usable)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(number: int, line: dict[str, Any], default_seed: int) -> dict[str, Any]:
    depth, drafts, rounds = line["depth"], line["drafts"], line["rounds"]
    new = line.get("new", NEW_TOKENS)
    context = math.ceil((depth + new) / PAGE_CELLS + 1) * PAGE_CELLS
    if line.get("context") == "shared":
        context = SHARED_CELLS
    rate, tokens_round = line["rounds_s"]["median"], line["tokens_round"]
    accepted, drafted = _acceptance(line)
    return {
        "trial_id": str(number),
        "study": "trade",
        "pair_id": str(number),
        "position": 0,
        "arm": "arm",
        "split": "search",
        "passage": f"{depth}:{line.get('seed', default_seed)}",
        "tier_cells": depth,
        "depth_cells": depth,
        "mode": "on" if drafts else "off",
        "spec": drafts,
        "mtp_window_cells": line["window"] if drafts else None,
        # A ring below the minimum was raised to it.
        "ring_cells": max(line["ring"], line["pool"]),
        "pool_cells": line["pool"],
        "select": str(line["select"]),
        "page_cells": PAGE_CELLS,
        "victims": "clock",
        "vram_budget_bytes": line["budget_mib"] * MIB,
        "context_cells": context,
        "max_new": new,
        "kind": "ok",
        "tokens": new,
        "token_hash": line["token_hash"],
        "rounds": rounds,
        "rounds_per_s": rate,
        "tok_s": rate * tokens_round,
        "tokens_per_round": tokens_round,
        "accepted": accepted,
        "drafted": drafted,
        "kv_misses": line["page_misses_a_round"] * rounds,
        "kv_overflows": line["pages_in_place_a_round"] * rounds,
        "expert_misses": line["expert_misses_a_round"] * rounds,
        "expert_slots": line["expert_slots"],
        "device": "H200",
        "worker": "H200",
    }


def _acceptance(line: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Return accepted and drafted by place; before they were kept, one rate for every place."""
    if "accepted" in line:
        return line["accepted"], line["drafted"]
    low, high = 0.0, 1.0
    for _ in range(50):
        rate = (low + high) / 2
        expected = sum(rate**place for place in range(line["drafts"] + 1))
        low, high = (rate, high) if expected < line["tokens_round"] else (low, rate)
    places = range(1, line["drafts"] + 1)
    accepted = [round(line["rounds"] * low**place) for place in places]
    return accepted, [line["rounds"]] * line["drafts"]
