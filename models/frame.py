"""Read a frame of trials: what it must hold, and how its runs pair up.

A trial is one run; the tuner writes it as one JSON line and this module sees it as one row. Runs
of the two arms alternate (default, arm, arm, default), so the unit of evidence is the *pair*: the
mean log rounds/s of the arm minus that of the default ring beside it. Drift that is linear in
time cancels in it, and so does acceptance, because with the drafter's window held fixed both
arms must emit the same tokens in the same rounds. A pair in which they do not is kind ``wrong
output`` and never a slow measurement. Where a plan lets the window follow the ring, rounds may
differ by right (tokens never may); such a pair is compared by tok/s and says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from strata.errors import UsageError

Run = dict[str, Any]

KINDS = ("ok", "out of memory", "crash", "timeout", "wrong output", "unstable", "interrupted")
ARMS = ("default", "arm")
SPLITS = ("search", "fresh")
MODES = ("off", "on")

TEXT_COLUMNS = (
    "trial_id", "study", "pair_id", "arm", "split", "passage", "mode", "select", "victims",
    "kind", "token_hash", "device", "model_hash", "engine_version", "worker",
)  # fmt: skip
NUMBER_COLUMNS = (
    "position", "tier_cells", "depth_cells", "spec", "mtp_window_cells", "ring_cells",
    "pool_cells", "page_cells", "vram_budget_bytes", "context_cells", "max_new", "tokens",
    "rounds", "rounds_per_s", "tok_s", "tokens_per_round", "kv_lookups", "kv_hits", "kv_misses",
    "kv_overflows", "expert_lookups", "expert_misses", "expert_slots",
)  # fmt: skip
LIST_COLUMNS = ("accepted", "drafted")
OPTIONAL_COLUMNS = ("failed_arm", "text", "message")
"""What a frame may say beyond the others: whose failure a run is, which text its passage is (two
names may be one), and a failure in words."""
COLUMNS = TEXT_COLUMNS + NUMBER_COLUMNS + LIST_COLUMNS

ALWAYS_POSITIVE = ("tier_cells", "depth_cells", "ring_cells", "page_cells")
POSITIVE_WHEN_OK = ("rounds", "tokens", "rounds_per_s", "tok_s", "tokens_per_round")
SAME_WITHIN_STUDY = ("study", "device", "model_hash", "engine_version")
SAME_WITHIN_PAIR = (
    "tier_cells", "depth_cells", "passage", "mode", "split", "spec", "select", "page_cells",
    "victims", "vram_budget_bytes", "context_cells", "max_new", "worker",
)  # fmt: skip


def problems(frame: pd.DataFrame) -> list[str]:
    """Return one sentence for each way in which `frame` cannot be used, none if it can."""
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        return [f"the trial frame lacks the column {name}" for name in missing]
    if frame.empty:
        return ["the trial frame holds no trial"]
    found = _enumeration_problems(frame)
    found += _number_problems(frame)
    found += [
        f"the trials mix {len(values)} values of {name} ({_some(values)}); a table speaks of one"
        for name in SAME_WITHIN_STUDY
        if len(values := frame[name].dropna().unique()) > 1
    ]
    return found + _pair_problems(frame)


def checked(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the evidence in `frame`: usable rows with numeric columns, in pair order.

    Interrupted runs say nothing and are left out. Raises UsageError with every problem found.
    """
    found = problems(frame)
    if found:
        raise UsageError("; ".join(found))
    clean = numeric(frame[frame["kind"] != "interrupted"])
    return clean.sort_values(["pair_id", "position"], kind="stable", ignore_index=True)


def numeric(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with numbers in every column that holds numbers, NaN where one lacks."""
    return frame.assign(**{name: pd.to_numeric(frame[name]) for name in NUMBER_COLUMNS})


def levelled(trials: pd.DataFrame) -> pd.DataFrame:
    """Return finished trials with the drift between the pairs of a passage taken out of its speeds.

    Every pair ran the default ring beside its arm, so that what the default did in one pair, over
    what it did on average on the same passage, is the machine's doing and not the ring's. Pairs
    whose default did not finish stay as they are. Doing it twice changes nothing.
    """
    place = [trials[name] for name in ("tier_cells", "mode", "passage")]
    log = np.log(trials["rounds_per_s"].astype(float))
    default = log.where(trials["arm"] == "default")
    here = default.groupby(trials["pair_id"]).transform("mean")
    level = default.groupby(place).transform("mean")
    factor = np.exp((level - here).fillna(0.0))
    return trials.assign(
        rounds_per_s=trials["rounds_per_s"].astype(float) * factor,
        tok_s=trials["tok_s"].astype(float) * factor,
    )


def pair_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row per (tier, mode, ring, passage, pair), failed pairs kept with their kind.

    `log_ratio` is NaN unless `kind` is ``ok``; `failed_arm` says whose failure it is (``arm``,
    ``default``, ``both``; empty where it is not known); `text` is the identity of the passage's
    text; `default_holds_all` says whether the default ring holds the whole context.
    """
    clean = checked(frame)
    clean["_window"] = effective_window_cells(clean)
    pairs: dict[str, list[Run]] = defaultdict(list)
    for run in clean.to_dict("records"):
        pairs[str(run["pair_id"])].append(run)
    rows = [_pair_row(runs) for runs in pairs.values()]
    table = pd.DataFrame(rows, columns=list(PAIR_COLUMNS))
    order = ["tier_cells", "mode", "ring_cells", "split", "passage", "pair_id"]
    return table.sort_values(order, kind="stable", ignore_index=True)


PAIR_COLUMNS = (
    "tier_cells", "mode", "ring_cells", "default_ring_cells", "split", "passage", "depth_cells",
    "pair_id", "kind", "failed_arm", "message", "text", "measure", "log_ratio", "worker",
    "default_holds_all",
)  # fmt: skip


def passage_means(pairs: pd.DataFrame) -> pd.DataFrame:
    """Average the usable pairs of each (tier, mode, ring, split, passage): the sampling unit.

    Prompts differ far more than repeats of one prompt, so repeats narrow nothing by themselves.
    """
    keys = ["tier_cells", "mode", "ring_cells", "split", "passage", "depth_cells"]
    usable = pairs[(pairs["kind"] == "ok") & (pairs["ring_cells"] != pairs["default_ring_cells"])]
    grouped = usable.groupby(keys, sort=True)
    return grouped.agg(
        log_ratio=("log_ratio", "mean"), num_pairs=("log_ratio", "size")
    ).reset_index()


def failure_counts(pairs: pd.DataFrame) -> pd.DataFrame:
    """Count the pairs of each (tier, mode, ring) that failed, by kind and by the arm at fault."""
    keys = ["tier_cells", "mode", "ring_cells", "kind", "failed_arm"]
    failed = pairs[pairs["kind"] != "ok"]
    return failed.groupby(keys, sort=True).size().rename("num_pairs").reset_index()


def _pair_row(runs: list[Run]) -> dict[str, object]:
    """Turn the runs of one pair, in order, into its row."""
    arms = {arm: [run for run in runs if run["arm"] == arm] for arm in ARMS}
    kind, failed_arm, message = _outcome(runs, arms)
    first = (arms["arm"] or runs)[0]
    row: dict[str, object] = {
        name: first[name]
        for name in (
            "tier_cells", "mode", "ring_cells", "split", "passage", "depth_cells", "pair_id",
            "worker",
        )
    }  # fmt: skip
    row |= {"kind": kind, "failed_arm": failed_arm, "message": message}
    row["text"] = first.get("text") or first["passage"]
    default = arms["default"][0] if arms["default"] else None
    row["default_ring_cells"] = -1 if default is None else default["ring_cells"]
    row["default_holds_all"] = bool(default and default["pool_cells"] >= default["context_cells"])
    row["measure"] = measure = "rounds_per_s" if _one_window(runs) else "tok_s"
    row["log_ratio"] = np.nan
    if kind == "ok":
        speed = {arm: np.mean([np.log(run[measure]) for run in arms[arm]]) for arm in ARMS}
        row["log_ratio"] = float(speed["arm"] - speed["default"])
    return row


def _outcome(runs: list[Run], arms: dict[str, list[Run]]) -> tuple[str, str, str]:
    """Return the kind of a pair, whose failure it is, and what its record says of it."""
    for run in runs:
        if run["kind"] != "ok":
            return str(run["kind"]), _failed_arm(run, arms), str(run.get("message") or "")
    places = {arm: [run["position"] for run in part] for arm, part in arms.items()}
    if not all(places.values()) or np.mean(places["arm"]) != np.mean(places["default"]):
        return "incomplete", "", ""  # drift would not cancel
    same = ("token_hash", "tokens", *(("rounds",) if _one_window(runs) else ()))
    if any(len({run[name] for run in runs}) > 1 for name in same):
        return "wrong output", "", "a pair's arms emitted different tokens or rounds"
    return "ok", "", ""


def _failed_arm(first: Run, arms: dict[str, list[Run]]) -> str:
    """Return whose failure a pair is, from the first run that failed; empty where nobody knows.

    Records of earlier schemas mark every run that did not end, whichever side failed. They tell
    where one side had run before, or all of it.
    """
    if first["kind"] == "wrong output":
        return ""
    if isinstance(known := first.get("failed_arm"), str):
        return known
    if arms["arm"] and all(run["kind"] == "ok" for run in arms["arm"]):
        return "default"
    return "arm" if first["arm"] == "arm" else ""


def _one_window(runs: list[Run]) -> bool:
    """Return whether the runs of a pair draft from the same cells, so that rounds must agree."""
    return runs[0]["mode"] == "off" or len({run["_window"] for run in runs}) == 1


def _enumeration_problems(frame: pd.DataFrame) -> list[str]:
    allowed = {"kind": KINDS, "arm": ARMS, "split": SPLITS, "mode": MODES}
    found = []
    for name, values in allowed.items():
        wrong = frame[~frame[name].isin(values)]
        if len(wrong):
            trial = wrong.iloc[0]
            found.append(
                f"trial {trial['trial_id']}: {name} is {trial[name]!r}; "
                f"it is one of {', '.join(values)}"
            )
    return found


def _number_problems(frame: pd.DataFrame) -> list[str]:
    found = []
    for name in NUMBER_COLUMNS:
        values = pd.to_numeric(frame[name], errors="coerce")
        words = frame[values.isna() & frame[name].notna()]
        if len(words):
            trial = words.iloc[0]
            found.append(f"trial {trial['trial_id']}: {name} is {trial[name]!r}, not a number")
            continue
        needed = _needed_positive(name, frame)
        wrong = frame[needed & ~((values > 0) & np.isfinite(values))]
        if len(wrong):
            trial = wrong.iloc[0]
            found.append(
                f"trial {trial['trial_id']}: {name} is {trial[name]}, which must be above zero"
                + (" in a run of kind ok" if name in POSITIVE_WHEN_OK else "")
            )
    return found


def _needed_positive(name: str, frame: pd.DataFrame) -> pd.Series:
    if name in ALWAYS_POSITIVE:
        return pd.Series(True, index=frame.index)
    return (frame["kind"] == "ok") & (name in POSITIVE_WHEN_OK)


def _pair_problems(frame: pd.DataFrame) -> list[str]:
    """Name the pairs whose runs are not comparable."""
    found = []
    live = frame[frame["kind"] != "interrupted"]
    twice = live[live.duplicated(["pair_id", "position"])]
    if len(twice):
        first = twice.iloc[0]
        found.append(f"pair {first['pair_id']} holds position {first['position']} twice")
    for name in SAME_WITHIN_PAIR:
        counts = live.groupby("pair_id")[name].nunique()
        found += [f"pair {pair} mixes values of {name}" for pair in counts.index[counts > 1][:1]]
    by_arm = live.groupby(["pair_id", "arm"])["ring_cells"].nunique()
    found += [
        f"pair {pair} has more than one ring in its arm {arm!r}"
        for pair, arm in by_arm.index[by_arm > 1][:1]
    ]
    return found


def effective_window_cells(frame: pd.DataFrame) -> pd.Series:
    """Return the cells that the drafter can read: W, or the whole context where that is less."""
    window = pd.to_numeric(frame["mtp_window_cells"]).astype(float)
    context = pd.to_numeric(frame["depth_cells"]) + pd.to_numeric(frame["max_new"]).fillna(0)
    return window.where(window > 0, np.inf).clip(upper=context.astype(float))


def _some(values: Iterable[object], limit: int = 3) -> str:
    listed = [str(value) for value in values]
    return ", ".join(listed[:limit]) + (", ..." if len(listed) > limit else "")
