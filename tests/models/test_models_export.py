"""A study becomes a table that can be saved, loaded and obeyed."""

from pathlib import Path

import pytest

from strata.errors import UsageError
from strata.models.export import TableFacts, build_table
from strata.models.simulate import Design, planted, study
from strata.policy.fingerprint import Fingerprint
from strata.policy.table import PolicyTable
from strata.policy.table_file import load_table, save_table
from strata.policy.tiers import make_tiers

DESIGN = Design(
    tiers_cells=(1_024, 4_096), rings_cells=(512, 1_024), passage_sd=0.0005, run_sd=0.0005
)
GAIN = planted(0.08, tier_cells=4_096, mode="on", ring_cells=512)


def facts(**changes: object) -> TableFacts:
    fields: dict[str, object] = {
        "fingerprint": Fingerprint(
            device="simulated", model_hash="0" * 64, kv_dtype="float32", page_cells=16
        ),
        "tiers": make_tiers([1_024, 4_096]),
        "default_ring_cells": 1_024,
        "margin_ratio": 0.02,
        "engine_version": "0.1.0",
        "provenance": {
            "study": "made up",
            "plan_sha256": None,
            "protocol_sha256": None,
            "passages_sha256": None,
            "measured_from": None,
            "measured_to": None,
        },
    }
    return TableFacts(**fields | changes)  # type: ignore[arg-type]


def test_the_table_holds_every_tier_and_mode_and_survives_a_file(tmp_path: Path) -> None:
    table = build_table(study(1, DESIGN, GAIN), facts())
    assert [(e.tier_cells, e.mode) for e in table.entries] == [
        (1_024, "off"), (1_024, "on"), (4_096, "off"), (4_096, "on"),
    ]  # fmt: skip
    _, hit = table.lookup(4_096 + 128 + 16, "on")
    assert hit is not None
    assert (hit.verdict, hit.ring_cells, hit.passages, hit.pairs) == ("better", 512, 3, 3)
    assert hit.effect_ratio == pytest.approx(0.08, abs=0.005)
    assert hit.lower_ratio is not None
    assert 0.02 < hit.lower_ratio < hit.effect_ratio
    assert "Holm over 4 tests" in table.provenance["decision_4096_on"]
    save_table(table, tmp_path / "table.json")
    assert load_table(tmp_path / "table.json") == table


def test_swapping_two_rings_in_the_trials_swaps_the_table() -> None:
    def ring(rings: dict[int, int]) -> int:
        frame = study(1, Design(**ALL_RINGS), GAIN)
        frame["ring_cells"] = frame["ring_cells"].replace(rings)
        return ring_of(build_table(frame, facts()), "on")

    assert ring({}) == 512
    assert ring({512: 2_048, 2_048: 512}) == 2_048


ALL_RINGS = {
    "tiers_cells": (1_024, 4_096),
    "rings_cells": (512, 1_024, 2_048),
    "search_passages": 4,
    "passage_sd": 0.0005,
    "run_sd": 0.0005,
}


def ring_of(table: PolicyTable, mode: str) -> int:
    (ring,) = [e.ring_cells for e in table.entries if (e.tier_cells, e.mode) == (4_096, mode)]
    return ring


def test_what_was_never_measured_says_so() -> None:
    frame = study(1, DESIGN, GAIN)
    partial = frame[(frame["tier_cells"] == 4_096) | (frame["mode"] == "on")]
    table = build_table(partial, facts(tiers=make_tiers([1_024, 2_048, 4_096])))
    verdicts = {(e.tier_cells, e.mode): e.verdict for e in table.entries}
    assert verdicts[2_048, "on"] == verdicts[2_048, "off"] == "no evidence"
    assert verdicts[1_024, "off"] == "no evidence"
    assert all(e.ring_cells == 1_024 for e in table.entries if e.verdict != "better")


def test_nothing_but_failures_is_no_evidence(tmp_path: Path) -> None:
    table = build_table(study(1, DESIGN).assign(kind="crash"), facts())
    assert {e.verdict for e in table.entries} == {"no evidence"}
    assert table.provenance["decision_4096_on"] == "no run of another ring came through"
    save_table(table, tmp_path / "table.json")


def test_wrong_output_is_invalid(tmp_path: Path) -> None:
    frame = study(1, DESIGN, GAIN)
    frame.loc[frame["arm"] == "arm", "token_hash"] = "another"
    table = build_table(frame, facts())
    assert {e.verdict for e in table.entries} == {"invalid"}
    assert {e.ring_cells for e in table.entries} == {1_024}
    save_table(table, tmp_path / "table.json")
    assert load_table(tmp_path / "table.json") == table


def test_one_passage_has_an_effect_and_no_bounds(tmp_path: Path) -> None:
    frame = study(1, DESIGN, GAIN)
    table = build_table(frame[frame["passage"].str.endswith(":0")], facts())
    assert {e.verdict for e in table.entries} == {"undecided"}
    assert all(e.lower_ratio is None and e.effect_ratio is not None for e in table.entries)
    save_table(table, tmp_path / "table.json")
    assert load_table(tmp_path / "table.json") == table


def test_a_tier_that_the_table_lacks_is_an_error() -> None:
    with pytest.raises(UsageError, match="tier 4096"):
        build_table(study(1, DESIGN), facts(tiers=make_tiers([1_024])))


def test_bounds_that_bound_nothing_are_left_out(tmp_path: Path) -> None:
    design = Design(tiers_cells=(4_096,), rings_cells=(512, 1_024), search_passages=2, passage_sd=9)
    table = build_table(study(1, design), facts())
    assert {e.lower_ratio for e in table.entries} == {None}
    save_table(table, tmp_path / "table.json")
    assert load_table(tmp_path / "table.json") == table
