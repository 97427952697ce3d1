"""The learned table beside every other way to choose a ring, on passages it was not shown."""

import numpy as np
import pandas as pd
import pytest

from strata.models.bench import (
    benches_of,
    document_of,
    halves,
    rows_of,
    rule_choices,
    scored_split,
)
from strata.models.decide import Rule
from strata.models.frame import checked, pair_table
from strata.models.regret import TABLE, known_rows, regret
from strata.models.rivals import BEST_FIXED, DEFAULT, compare_rivals
from strata.models.simulate import Design, study

DESIGN = Design(
    tiers_cells=(1_024, 4_096), rings_cells=(256, 1_024, 8_192), search_passages=2,
    fresh_passages=8, passage_sd=0.005, run_sd=0.005,
)  # fmt: skip
BEST = {(1_024, "off"): 256, (1_024, "on"): 1_024, (4_096, "off"): 8_192, (4_096, "on"): 1_024}


def crossed(tier: int, mode: str, ring: int) -> float:
    """Give each (tier, mode) a best ring of its own, worth a tenth."""
    return 2e-3 * (1.0 if BEST[tier, mode] == ring else 1.1)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return study(7, DESIGN, crossed)


def without(frame: pd.DataFrame, tier: int, ring: int, kind: str) -> pd.DataFrame:
    """Return the trials with every pair of a ring failed at a tier."""
    pairs = frame.loc[(frame["tier_cells"] == tier) & (frame["ring_cells"] == ring), "pair_id"]
    gone = frame["pair_id"].isin(pairs)
    return frame.assign(kind=np.where(gone, kind, frame["kind"]))


def test_passages_of_one_document_stay_together(frame: pd.DataFrame) -> None:
    assert document_of("8192:13") == document_of("131072:13") == "13"
    assert document_of("alone") == "alone"
    benches = benches_of(checked(frame), pair_table(frame), 1_024, "fresh")
    assert {len(bench.table) for bench in benches} == {8}
    for first, second in halves(benches, 5, seed=1):
        assert len(first) == len(second) == 4
        assert not first & second
        for bench in benches:
            assert len(rows_of(bench.table, first)) == 4


def test_fresh_passages_score_only_where_every_ring_ran_on_them(frame: pd.DataFrame) -> None:
    assert scored_split(pair_table(frame)) == "fresh"
    chosen = frame[(frame["split"] == "search") | (frame["pair_id"].str.contains("-256"))]
    assert scored_split(pair_table(chosen)) == "all"
    assert scored_split(pair_table(frame[frame["split"] == "search"])) == "all"


def test_a_policy_learns_from_the_search_and_from_what_does_not_score_it(
    frame: pd.DataFrame,
) -> None:
    known = frame[known_rows(frame, "fresh", frozenset({"3", "4"}))]
    assert set(known.loc[known["split"] == "search", "passage"].map(document_of)) == {"0", "1"}
    assert set(known.loc[known["split"] == "fresh", "passage"].map(document_of)) == {"3", "4"}


def test_the_table_beats_whatever_knows_less(frame: pd.DataFrame) -> None:
    found = compare_rivals(frame, Rule(), 1_024)
    assert found.split == "fresh"
    rivals = found.rivals.set_index("rival")
    assert rivals.loc[BEST_FIXED, "ring_cells"] == 1_024
    for rival in (BEST_FIXED, DEFAULT):
        assert rivals.loc[rival, "verdict"] == "better"
        assert rivals.loc[rival, "mean"] == pytest.approx(np.log(1.1) / 2, abs=0.01)
    assert (rivals["documents"] == 8).all()
    entries = found.entries.set_index(["tier_cells", "mode"])
    assert entries["ring_cells"].to_dict() == entries["best_ring_cells"].to_dict() == BEST
    assert found.tests == 2
    assert entries["no_worse"].all()
    table = regret(frame, Rule(), 1_024, halvings=3).set_index("policy")
    for policy in ("learned", TABLE):
        assert table.loc[policy, "worst_pct"] == pytest.approx(0, abs=0.5)


def test_without_a_gain_everything_is_a_tie_with_the_default() -> None:
    found = compare_rivals(study(2, DESIGN), Rule(), 1_024)
    rivals = found.rivals.set_index("rival")
    assert rivals.loc[DEFAULT, "mean"] == 0.0
    assert (rivals.loc[[BEST_FIXED, DEFAULT], "verdict"] == "tie").all()
    assert found.tests == 0
    assert found.entries["no_worse"].all()


def test_a_ring_that_memory_refused_is_lowered_to_what_it_holds(frame: pd.DataFrame) -> None:
    refused = checked(without(frame, 4_096, 8_192, "out of memory"))
    benches = {b.place: b for b in benches_of(refused, pair_table(refused), 1_024, "fresh")}
    tight, roomy = benches[4_096, "on"], benches[1_024, "on"]
    assert (tight.refused_cells, tight.held_cells) == (8_192, 1_024)
    assert (roomy.refused_cells, roomy.held_cells) == (None, None)
    chosen = rule_choices(tight, [256, 1_024, 8_192])
    assert chosen["fixed 8192"] == chosen["depth"] == chosen["need"] == 1_024
    assert rule_choices(roomy, [256, 1_024, 8_192])["fixed 8192"] == 8_192
    table = regret(refused, Rule(), 1_024, halvings=2).set_index("policy")
    assert table.loc["fixed 8192", "entries"] == 4


def test_a_ring_that_was_not_tried_is_not_measured(frame: pd.DataFrame) -> None:
    tried = frame[~((frame["tier_cells"] == 4_096) & frame["pair_id"].str.endswith("-8192"))]
    rivals = compare_rivals(tried, Rule(), 1_024).rivals.set_index("rival")
    assert rivals.loc["depth", "entries"] + rivals.loc["depth", "not_measured"] == 4
    assert rivals.loc["depth", "not_measured"] == 2


def test_trials_without_a_default_beside_them_compare_nothing(frame: pd.DataFrame) -> None:
    found = compare_rivals(frame[frame["arm"] == "arm"], Rule(), 1_024)
    assert found.rivals.empty
    assert found.entries.empty
