"""Hold the output of every run against that of every other run on its passage.

A pair is checked within itself when it runs. That all pairs of a study agree is known only when
they are there, in whatever order; so it is a view of the stored trials and not a column of them.
Whatever the ring, a passage has one continuation: plain decoding gives the same tokens beside every
ring, and so does the drafter, in the same rounds where it reads as many cells. Where they disagree
nobody knows which is right, so all of them are wrong output.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from strata.models.frame import effective_window_cells

BETWEEN_PAIRS = "{what} differ between pairs: {one} beside ring {ring}, {other} here"
OTHER_TOKENS = "the drafter changed the tokens: {here} with it, {plain} without"
HASH_DIGITS = 12


def hold_outputs(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the trials with wrong output marked as that, each with what differs as its message.

    A drafter is held against plain decoding only on passages where that agrees with itself, so
    what is wrong without a drafter is not blamed on one.
    """
    held = frame.assign(_window=effective_window_cells(frame).where(frame["mode"] == "on"))
    held["_arm_ring"] = _arm_rings(held)
    held = _hold(held, ["passage", "mode"], "token_hash", "tokens")
    held = _hold(held, ["passage", "mode", "spec", "_window"], "rounds", "rounds")
    return _hold_drafter(held).drop(columns=["_window", "_arm_ring"])


def _arm_rings(frame: pd.DataFrame) -> pd.Series:
    """Return the ring that each run's pair is about."""
    rings = frame[frame["arm"] == "arm"].groupby("pair_id")["ring_cells"].first()
    return frame["pair_id"].map(rings).fillna(frame["ring_cells"]).astype(int)


def _hold(frame: pd.DataFrame, place: Sequence[str], column: str, what: str) -> pd.DataFrame:
    """Mark the runs of every place whose finished runs do not agree in a column."""
    finished = frame[frame["kind"] == "ok"]
    by_place = finished.groupby(list(place), dropna=False, sort=False)
    differing = finished[by_place[column].transform("nunique") > 1]
    checked = frame.copy()
    for _, runs in differing.groupby(list(place), dropna=False, sort=False):
        for row, run in runs.iterrows():
            other = runs[runs[column] != run[column]].iloc[0]
            message = BETWEEN_PAIRS.format(
                what=what,
                one=_short(other[column]),
                ring=other["_arm_ring"],
                other=_short(run[column]),
            )
            checked.loc[row, ["kind", "message"]] = ["wrong output", message]
    return checked


def _hold_drafter(frame: pd.DataFrame) -> pd.DataFrame:
    """Mark the runs whose drafter gave other tokens than plain decoding."""
    plain = frame[frame["mode"] == "off"]
    doubtful = plain.loc[plain["kind"] == "wrong output", "passage"]
    sure = plain[(plain["kind"] == "ok") & ~plain["passage"].isin(doubtful)]
    wanted = frame["passage"].map(sure.groupby("passage")["token_hash"].first())
    wrong = (
        (frame["mode"] == "on")
        & (frame["kind"] == "ok")
        & wanted.notna()
        & (frame["token_hash"] != wanted)
    )
    checked = frame.copy()
    for row in frame.index[wrong]:
        checked.loc[row, ["kind", "message"]] = [
            "wrong output",
            OTHER_TOKENS.format(
                here=_short(frame.loc[row, "token_hash"]), plain=_short(wanted[row])
            ),
        ]
    return checked


def _short(value: object) -> str:
    return value[:HASH_DIGITS] if isinstance(value, str) else str(value)
