"""What fails, repeats or contradicts itself is not adopted, wherever in a study it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.models.decide import Entry, Rule, decide_pairs
from strata.models.frame import pair_table
from strata.models.guards import charged
from strata.models.outputs import hold_outputs
from strata.models.samples import Samples
from strata.models.simulate import Design, planted, study

DESIGN = Design(
    tiers_cells=(4_096,), rings_cells=(512, 1_024, 2_048), search_passages=2, fresh_passages=6,
    passage_sd=0.0005, run_sd=0.0005,
)  # fmt: skip
GAIN = planted(0.08, tier_cells=4_096, mode="off", ring_cells=512)
FRAME = study(1, DESIGN, GAIN)
SAMPLES = Samples(search=2, fresh=6)
KINDS = ("out of memory", "crash", "timeout", "unstable")


def entry_at(frame: pd.DataFrame, samples: Samples = SAMPLES, mode: str = "off") -> Entry:
    frame = frame[frame["mode"] == mode]
    found = decide_pairs(pair_table(frame), Rule(margin_ratio=0.0), 1_024, samples)
    (entry,) = found.entries
    return entry


def failed(
    frame: pd.DataFrame, ring: int, passages: list[int], kind: str, arm: str | None
) -> pd.DataFrame:
    """Return the trials with every run of some pairs failed, as a pair that never ran is stored."""
    pairs = [f"4096:{one}-off-{ring}" for one in passages]
    mine = frame["pair_id"].isin(pairs)
    changed = frame.assign(failed_arm=None) if "failed_arm" not in frame else frame.copy()
    changed.loc[mine, "kind"] = kind
    changed.loc[mine, "failed_arm"] = arm
    return changed


def test_the_planted_gain_is_there() -> None:
    hit = entry_at(FRAME)
    assert (hit.verdict, hit.ring_cells, hit.reason) == ("better", 512, "")


@pytest.mark.parametrize("arm", [None, "arm"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("passage", [0, 2, 7])
def test_one_failed_pair_keeps_a_ring_out(arm: str | None, kind: str, passage: int) -> None:
    """On a search passage it is not chosen any more, on a fresh one not confirmed."""
    hit = entry_at(failed(FRAME, 512, [passage], kind, arm))
    assert hit.ring_cells == 1_024
    if passage >= 2:
        assert hit.reason == f"failed on 1 of 6 fresh passages ({kind})"
    else:
        assert hit.best is not None
        assert hit.best.ring_cells == 2_048


@pytest.mark.parametrize("arm", ["default", "both"])
def test_where_the_default_fails_by_itself_nothing_is_said_of_the_ring(arm: str) -> None:
    hit = entry_at(failed(FRAME, 512, [3], "out of memory", arm))
    assert (hit.verdict, hit.ring_cells) == ("better", 512)
    few = entry_at(failed(FRAME, 512, [3, 4], "out of memory", arm))
    assert (few.verdict, few.ring_cells) == ("undecided", 1_024)
    assert few.reason == "4 of 6 fresh passages came through, and a verdict needs 5"


def test_a_pair_that_nobody_can_blame_is_the_rings_unless_the_default_failed_beside_itself() -> (
    None
):
    lost = failed(FRAME, 512, [3], "crash", None)
    assert entry_at(lost).verdict == "undecided"
    itself = lost[lost["pair_id"] == "4096:3-off-512"].assign(pair_id="itself", ring_cells=1_024)
    assert entry_at(pd.concat([lost, itself], ignore_index=True)).verdict == "better"
    other = itself.assign(kind="timeout")
    assert entry_at(pd.concat([lost, other], ignore_index=True)).verdict == "undecided"


def test_a_chosen_ring_that_failed_on_every_fresh_passage_is_named() -> None:
    hit = entry_at(failed(FRAME, 512, list(range(2, 8)), "out of memory", "arm"))
    assert (hit.verdict, hit.best) == ("no evidence", None)
    assert hit.reason == (
        "ring 512, chosen on search passages, failed on 6 of 6 fresh passages (out of memory)"
    )
    assert not hit.harmless


def test_kinds_of_failure_are_counted() -> None:
    lost = failed(FRAME, 512, [2, 3], "crash", None)
    hit = entry_at(failed(lost, 512, [4], "timeout", "arm"))
    assert hit.reason == "failed on 3 of 6 fresh passages (2 crash, 1 timeout)"


PAIRS = pair_table(FRAME[FRAME["mode"] == "off"])


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(list(PAIRS.index)),
        st.tuples(st.sampled_from(KINDS), st.sampled_from(["", "arm", "default", "both"])),
        max_size=10,
    )
)
def test_what_is_adopted_never_failed_and_came_through(
    failures: dict[int, tuple[str, str]],
) -> None:
    pairs = PAIRS.copy()
    for row, (kind, arm) in failures.items():
        pairs.loc[row, ["kind", "failed_arm", "log_ratio"]] = [kind, arm, np.nan]
    found = decide_pairs(pairs, Rule(margin_ratio=0.0), 1_024, SAMPLES)
    (hit,) = found.entries
    if hit.verdict == "better":
        assert hit.best is not None
        assert hit.ring_cells not in set(charged(pairs)["ring_cells"])
        mine = pairs[(pairs["ring_cells"] == hit.ring_cells) & (pairs["split"] == "fresh")]
        assert hit.best.passages == (mine["kind"] == "ok").sum() >= 5
    else:
        assert hit.ring_cells == 1_024
    if set(charged(pairs)["ring_cells"]) == {512, 2_048}:
        assert hit.verdict != "better"
    assert "confirmed on fresh" in found.note, "what failed never makes it a study of one stage"


def test_which_test_it_is_follows_from_the_plan_alone() -> None:
    """One tier that ran on two fresh passages does not make the others' search count twice."""
    short = replace(DESIGN, tiers_cells=(1_024, 4_096))
    frame = study(1, short, GAIN)
    late = frame["passage"].isin([f"1024:{one}" for one in range(4, 8)])
    found = decide_pairs(pair_table(frame[~late]), Rule(margin_ratio=0.0), 1_024, SAMPLES)
    assert "confirmed on fresh" in found.note
    assert {one.passages for one in found.candidates} == {2, 6}
    assert {e.verdict for e in found.entries if e.tier_cells == 1_024} == {"undecided"}


def test_a_partial_study_is_undecided_so_far() -> None:
    part = replace(SAMPLES, done_pairs=30, total_pairs=33)
    found = decide_pairs(pair_table(FRAME), Rule(margin_ratio=0.0), 1_024, part)
    assert {one.verdict for one in (*found.entries, *found.candidates)} == {"undecided"}
    assert {one.reason for one in found.entries} == {
        "undecided so far: 30 of 33 decoding pairs were run"
    }
    assert not any(one.harmless for one in found.entries)
    assert entry_at(FRAME, part.as_if_whole()).verdict == "better"


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (2, 3, "passages 4096:2 (fresh) and 4096:3 (fresh) are one text"),
        (0, 5, "passages 4096:0 (search) and 4096:5 (fresh) are one text"),
    ],
)
def test_a_text_that_counts_twice_voids_the_entry(one: int, other: int, words: str) -> None:
    text = FRAME["passage"].replace({f"4096:{other}": f"4096:{one}"})
    hit = entry_at(FRAME.assign(text=text))
    assert (hit.verdict, hit.ring_cells, hit.reason) == ("invalid", 1_024, words)
    searched = FRAME["passage"].replace({"4096:1": "4096:0"})
    assert entry_at(FRAME.assign(text=searched)).verdict == "better", "it is chosen on alone"


def test_other_tokens_beside_another_ring_are_wrong_output() -> None:
    lie = (FRAME["mode"] == "off") & FRAME["pair_id"].str.endswith("-512")
    lie &= FRAME["passage"] == "4096:2"
    frame = FRAME.assign(token_hash=FRAME["token_hash"].where(~lie, "another"))
    assert entry_at(frame).verdict == "better", "each pair agrees with itself"
    held = hold_outputs(frame)
    hit = entry_at(held)
    assert (hit.verdict, hit.ring_cells) == ("invalid", 1_024)
    assert hit.reason.startswith("wrong output on 1 of 8 passages (4096:2: tokens differ")
    assert "beside ring 2048" in hit.reason
    assert entry_at(held, mode="on").verdict != "invalid", "plain decoding is at fault"
    assert len(held) == len(frame)


@pytest.mark.parametrize(("mode", "column"), [("off", "rounds"), ("on", "rounds")])
def test_other_rounds_beside_another_ring_are_wrong_output(mode: str, column: str) -> None:
    lie = FRAME["pair_id"].str.contains(f"-{mode}-2048") & (FRAME["passage"] == "4096:6")
    frame = FRAME.assign(**{column: FRAME[column].where(~lie, FRAME[column] + 1)})
    assert entry_at(hold_outputs(frame), mode=mode).verdict == "invalid"
    windows = np.where(lie, 64, frame["mtp_window_cells"])
    followed = hold_outputs(frame.assign(mtp_window_cells=windows))
    assert (entry_at(followed, mode=mode).verdict == "invalid") == (mode == "off")


def test_sound_output_is_left_as_it_is() -> None:
    pd.testing.assert_frame_equal(hold_outputs(FRAME), FRAME)
