"""What a report says, as plain JSON: computed once, shown everywhere.

The page, its pictures, the terminal table and the tests all read this and nothing else. The
passage is the sample: runs of one passage are averaged first, intervals are Student's t over
passages at 95 %, and a ring's gain is the mean log ratio of its pairs, so that it is free of what
passages and machine have in common.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from strata.policy.table import PolicyTable
from strata.policy.table_document import to_document
from strata.tuner.conclude import usage_words
from strata.tuner.evidence import evidence_of
from strata.tuner.record import TrialRecord
from strata.tuner.report.counts import add_up, count_measured
from strata.tuner.report.prediction import add_predictions
from strata.tuner.store import TrialStore
from strata.tuner.study import StudyRecord
from strata.tuner.verdict import StudyVerdict, verdict_of

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "strata.tune-report/1"
CONFIDENCE = 0.95
MEASURES = ("rounds_per_s", "tok_s", "tokens_per_round", "tpot_p50_ms")
PROMPT_MEASURES = ("prefill_s", "ttft_ms")
"""Measured by pairs of their own, where the plan asks for them."""
COUNTERS = ("kv_lookups", "kv_hits", "kv_misses", "kv_bytes", "kv_overflows")

Json = dict[str, Any]


def summarise(
    store: TrialStore, study: StudyRecord, table: PolicyTable, *, table_path: str | None = None
) -> Json:
    """Return the whole report of a study as plain JSON; `table_path` is where its table lies."""
    frame = evidence_of(store, study)
    records = _held(store.trials(study.study), frame)
    measured = count_measured(store, study, records)
    cells = [
        _cell(group, tier, mode, ring, study.default_ring_cells)
        for (tier, mode, ring), group in frame.groupby(
            ["tier_cells", "mode", "ring_cells"], sort=True
        )
    ]
    _add_prompts(cells, frame, store.frame(study.study, purpose="prefill"))
    _add_gains(cells, frame)
    model = add_predictions(cells, frame)
    verdict = verdict_of(store, study)
    return {
        "schema": SCHEMA,
        "study": {name: value for name, value in study.to_json().items() if name != "plan"},
        "plan": json.loads(study.plan),
        "measured": measured,
        "total": add_up(measured),
        "runs_stored": len(store.every_trial(study.study)),
        "so_far": verdict.samples.so_far,
        "reasons": verdict.reasons,
        "two_stages": verdict.samples.has_two_stages,
        "tests": len(verdict.candidates),
        "use": None if table_path is None else usage_words(study, table, table_path),
        "trials": len(frame),
        "kinds": {str(kind): int(n) for kind, n in frame["kind"].value_counts().items()},
        "failures": _failures(records),
        "confidence": CONFIDENCE,
        "cells": cells,
        "model": model,
        "entries": [
            _entry(entry, cells, study, verdict) for entry in to_document(table)["entries"]
        ],
        "table": to_document(table),
    }


def _cell(group: pd.DataFrame, tier: int, mode: str, ring: int, default: int) -> Json:
    """Return everything measured of one ring at one tier and mode."""
    usable = group[group["kind"] == "ok"]
    ledgers = [one for one in usable["ledger"] if one]
    lookups, hits = usable["kv_lookups"].sum(), usable["kv_hits"].sum()
    return {
        "tier_cells": int(tier),
        "mode": str(mode),
        "ring_cells": int(ring),
        "pool_cells": int(group["pool_cells"].iloc[0]),
        "context_cells": int(group["context_cells"].iloc[0]),
        "is_default": int(ring) == default,
        "runs": len(group),
        "usable_runs": len(usable),
        "passages": int(usable["passage"].nunique()),
        **{name: _spread(usable, name) for name in MEASURES},
        **{name: _mean(usable, name) for name in COUNTERS},
        "hit_ratio": float(hits / lookups) if lookups else None,
        "expert_slots": _mean(usable, "expert_slots"),
        "ledger": ledgers[0] if ledgers else None,
        "gain": None,
    }


def _spread(usable: pd.DataFrame, name: str) -> Json | None:
    """Return mean, interval and the passages' own means of one measure."""
    by_passage = usable.groupby("passage", sort=True)[name].mean().dropna()
    if by_passage.empty:
        return None
    mean, lower, upper = interval([float(value) for value in by_passage])
    return {
        "mean": mean,
        "lower": lower,
        "upper": upper,
        "by_passage": {str(key): float(value) for key, value in by_passage.items()},
    }


def _add_prompts(cells: list[Json], frame: pd.DataFrame, prompts: pd.DataFrame) -> None:
    """Give each cell its prompt's times: of prefill pairs; earlier studies timed them beside."""
    source = frame if prompts.empty else prompts
    for cell in cells:
        mine = source[
            (source["kind"] == "ok")
            & (source["tier_cells"] == cell["tier_cells"])
            & (source["mode"] == cell["mode"])
            & (source["ring_cells"] == cell["ring_cells"])
        ]
        cell |= {name: _spread(mine, name) for name in PROMPT_MEASURES}


def _add_gains(cells: list[Json], frame: pd.DataFrame) -> None:
    """Give each cell its gain over the default ring, paired; a default's is its A/A control."""
    from strata.models.frame import pair_table

    pairs = pair_table(frame)
    usable = pairs[pairs["kind"] == "ok"]
    for cell in cells:
        mine = usable[
            (usable["tier_cells"] == cell["tier_cells"])
            & (usable["mode"] == cell["mode"])
            & (usable["ring_cells"] == cell["ring_cells"])
        ]
        by_passage = mine.groupby("passage", sort=True)["log_ratio"].mean()
        if by_passage.empty:
            continue
        mean, lower, upper = interval([float(value) for value in by_passage])
        cell["gain"] = {
            "mean": math.expm1(mean),
            "lower": None if lower is None else math.expm1(lower),
            "upper": None if upper is None else math.expm1(upper),
            "by_passage": {str(key): math.expm1(value) for key, value in by_passage.items()},
            "pairs": len(mine),
        }


def interval(values: list[float]) -> tuple[float, float | None, float | None]:
    """Return mean and two-sided t interval; one value has no interval."""
    import numpy as np

    from strata.models.inference import mean_bounds

    lower, upper = mean_bounds(np.array(values), (1 - CONFIDENCE) / 2)
    mean = math.fsum(values) / len(values)
    return (
        mean,
        float(lower) if math.isfinite(lower) else None,
        float(upper) if math.isfinite(upper) else None,
    )


def _entry(entry: Json, cells: list[Json], study: StudyRecord, verdict: StudyVerdict) -> Json:
    """Return a table entry with its word and the ring it is about, beside the measured best."""
    place = (entry["tier_cells"], entry["mode"])
    judged = next((one for one in verdict.entries if (one.tier_cells, one.mode) == place), None)
    mine = [
        cell
        for cell in cells
        if (cell["tier_cells"], cell["mode"]) == place
        and (cell["gain"] is not None or cell["is_default"])
        and cell["usable_runs"]
    ]
    best = max(mine, key=_gain_or_zero, default=None)
    chosen = [cell for cell in mine if cell["ring_cells"] == entry["ring_cells"]]
    return {
        **entry,
        "word": verdict.word_at(*place),
        "is_default": entry["ring_cells"] == study.default_ring_cells,
        "tested_ring_cells": judged.best.ring_cells if judged and judged.best else None,
        "measured_best_ring_cells": best["ring_cells"] if best else None,
        "measured_best_gain": _gain_or_zero(best) if best else None,
        "chosen_gain": _gain_or_zero(chosen[0]) if chosen else None,
    }


def _gain_or_zero(cell: Json) -> float:
    """Return the mean gain of a ring; the default ring gains nothing over itself."""
    return 0.0 if cell["is_default"] else float(cell["gain"]["mean"])


def _held(records: Sequence[TrialRecord], frame: pd.DataFrame) -> list[TrialRecord]:
    """Return the records with what came of holding their outputs against each other."""
    found = {
        str(key): (str(kind), str(message))
        for key, kind, message in zip(
            frame["trial_id"], frame["kind"], frame["message"], strict=True
        )
    }
    held = [(one, *found.get(one.trial_id, (one.kind, one.message))) for one in records]
    return [replace(one, kind=kind, message=message) for one, kind, message in held]


def _failures(records: Sequence[TrialRecord]) -> list[Json]:
    """Return the failed trials by kind and place, with the first message of each."""
    failed = [one for one in records if one.kind != "ok"]
    groups: dict[tuple[str, str, int, str, int], list[TrialRecord]] = defaultdict(list)
    for one in failed:
        place = (one.purpose, one.kind, one.tier_cells, one.mode, one.ring_cells)
        groups[place].append(one)
    return [
        {
            "purpose": purpose,
            "kind": kind,
            "tier_cells": tier,
            "mode": mode,
            "ring_cells": ring,
            "trials": len(group),
            "message": group[0].message,
        }
        for (purpose, kind, tier, mode, ring), group in sorted(groups.items())
    ]


def _mean(usable: pd.DataFrame, name: str) -> float | None:
    value = usable[name].dropna().astype(float).mean()
    return None if math.isnan(value) else float(value)
