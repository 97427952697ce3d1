"""Count what became of a study's pairs, for every purpose that they were run for.

A pair is measured when all of its runs came through, failed when they are stored and one did not,
and missing while any is still to be run. Pairs count by their last try; the database holds the
tries before it too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from strata.tuner.record import TrialRecord
from strata.tuner.store import TrialStore
from strata.tuner.study import StudyRecord
from strata.tuner.sweep import due_pairs, is_stored

Json = dict[str, Any]
STATES = ("measured", "failed", "missing")


def count_measured(
    store: TrialStore, study: StudyRecord, records: Sequence[TrialRecord]
) -> list[Json]:
    """Return pairs by what became of them, and runs, one row a purpose.

    `records` are the last tries.
    """
    stored = store.trial_ids(study.study)
    due = {pair.pair_id: pair for pair in due_pairs(study, store)}
    runs: dict[str, list[TrialRecord]] = defaultdict(list)
    for one in records:
        runs[one.planned_id].append(one)
    state = {key: "missing" for key, pair in due.items() if not is_stored(pair, stored)}
    for key, many in runs.items():
        good = all(one.kind == "ok" for one in many)
        state.setdefault(key, "measured" if good else "failed")
    purpose: dict[str, str] = {key: pair.purpose for key, pair in due.items()}
    purpose |= {key: many[0].purpose for key, many in runs.items()}
    rows = []
    for name in dict.fromkeys([*study.read_plan().measure.purposes, *purpose.values()]):
        states = [state[key] for key, of in purpose.items() if of == name]
        mine = [one for one in records if one.purpose == name]
        usable = sum(one.kind == "ok" for one in mine)
        counts: Json = {word: states.count(word) for word in STATES}
        rows.append(
            {"purpose": name, "pairs": len(states), **counts}
            | {"runs": len(mine), "usable_runs": usable}
        )
    return rows


def add_up(rows: Sequence[Json]) -> Json:
    """Return the sums over all purposes."""
    return {name: sum(row[name] for row in rows) for name in rows[0] if name != "purpose"}
