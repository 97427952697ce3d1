"""Verdicts and their numbers, the seed's own rule, and two engines on one plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tuner_samples import FACTS, SMALL_PLAN, all_pairs, at_rates, make_records
from typer.testing import CliRunner

from strata.cli.tune import app
from strata.errors import StoreError, UsageError
from strata.tuner.arms import ArmGrid, PairSpec
from strata.tuner.conclude import conclude
from strata.tuner.environment import EngineFacts
from strata.tuner.plan import load_plan, parse_plan
from strata.tuner.store import MemoryStore, TrialStore
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord, create_study
from strata.tuner.verdict import compare_studies, verdict_of

ROOT = Path(__file__).parents[2]
ONE_RING = SMALL_PLAN.replace("rings = [32, 64, 128]", "rings = [32]").replace(
    "fresh = [1, 2]", "fresh = [1, 2, 3]"
)
DECIDE = '\n[decision]\nrule = "{rule}"\nmargin = 0.02\n'
Gain = Callable[[PairSpec], float]


def study_of(text: str, facts: EngineFacts = FACTS) -> StudyRecord:
    grid = ArmGrid(parse_plan(text, origin="test"), 64)
    return create_study(grid, facts, created_at="2026-01-02T03:04:05+00:00")


def engine(version: str) -> EngineFacts:
    return EngineFacts.from_json(FACTS.to_json() | {"engine_version": version})


def fill(store: TrialStore, study: StudyRecord, gain: Gain, speed: Gain | None = None) -> None:
    """Store a study: the arm's gain over the default, and both arms' speed over the sample's."""
    store.add_study(study)
    for pair in all_pairs(study):
        factor = 1.0 if speed is None else speed(pair)
        records = make_records(pair, gain=gain(pair), engine_version=study.engine_version)
        store.add_trials(
            [at_rates(r, rounds_per_s=r.rounds_per_s * factor) for r in records if r.rounds_per_s]
        )


def noise(pair: PairSpec) -> float:
    """Return a little that depends on the passage alone."""
    return 0.001 * int(pair.passage.partition(":")[2])


def faster_at_64(pair: PairSpec) -> float:
    return (1.1 if pair.tier_cells == 64 else 1.0) + noise(pair)


def slower_at_32(pair: PairSpec) -> float:
    return (1.1 if pair.tier_cells == 64 else 0.9 if pair.mode == "on" else 1.0) + noise(pair)


def taken(store: TrialStore, study: StudyRecord) -> dict[tuple[int, str], tuple[str, int]]:
    table = conclude(store, study)
    return {(e.tier_cells, e.mode): (e.verdict, e.ring_cells) for e in table.entries}


def test_every_entry_has_its_word_and_its_numbers() -> None:
    store, study = MemoryStore(), study_of(ONE_RING + DECIDE.format(rule="holm-t"))
    fill(store, study, slower_at_32)
    found = verdict_of(store, study)
    words = {(e.tier_cells, e.mode): e.verdict for e in found.entries}
    assert words == {
        (32, "off"): "equivalent",
        (32, "on"): "worse",
        (64, "off"): "better",
        (64, "on"): "undecided",  # it gains, and loses in the tier below, where this one begins
    }
    assert found.is_of_one_rule
    assert [e.harmless for e in found.entries] == [True, False, True, True]
    best = found.entries[2].best
    assert best is not None
    assert best.lower < best.floor < best.mean < best.upper
    assert (best.passages, best.pairs) == (3, 3)  # the fresh ones
    assert taken(store, study)[64, "off"] == ("better", 32)


def test_a_tier_that_the_default_ring_holds_has_no_evidence(tmp_path: Path) -> None:
    """Verdict and table say the same word of it, and it keeps no other tier from its ring."""
    text = ONE_RING.replace("rings = [32]", "rings = [64]").replace(
        "default_ring = 64", "default_ring = 128"
    )
    plan = parse_plan(text + DECIDE.format(rule="no-regression"), origin="test")
    study = create_study(ArmGrid(plan, 128), FACTS, created_at="2026-01-02T03:04:05+00:00")
    path = tmp_path / "t.duckdb"
    with DuckStore(path) as store:
        fill(store, study, faster_at_64)
        words = {(e.tier_cells, e.mode): e.verdict for e in verdict_of(store, study).entries}
        assert words == {place: word for place, (word, _) in taken(store, study).items()}
    assert words[32, "off"] == words[32, "on"] == "no evidence"
    assert words[64, "off"] == "better"
    result = CliRunner().invoke(app, ["verdict", study.study, "--db", str(path)])
    assert result.exit_code == 0, result.stderr
    line = (
        "no evidence at 32 off, 32 on: no other ring was run, for the default ring holds the whole"
    )
    assert line in result.stdout


def test_the_seeds_rule_takes_all_rings_or_none() -> None:
    study = study_of(ONE_RING + DECIDE.format(rule="no-regression"))
    every, none = MemoryStore(), MemoryStore()
    fill(every, study, faster_at_64)
    assert taken(every, study)[64, "off"] == ("better", 32)
    fill(none, study, slower_at_32)
    assert taken(none, study)[64, "off"] == ("undecided", 64)
    entry = next(e for e in verdict_of(none, study).entries if e.tier_cells == 64)
    assert entry.note.startswith("rings are adopted together, and none may regress: not shown at ")
    assert "32 on" in entry.note


def test_a_tier_whose_ring_only_failed_is_not_harmless() -> None:
    study = study_of(ONE_RING + DECIDE.format(rule="no-regression"))
    store = MemoryStore()
    store.add_study(study)
    for pair in all_pairs(study):
        lost = {"kind": "out of memory", "rounds_per_s": None} if pair.tier_cells == 32 else {}
        store.add_trials(make_records(pair, gain=faster_at_64(pair), **lost))
    assert {ring for _, ring in taken(store, study).values()} == {64}


def test_the_seeds_rule_wants_one_ring_a_tier() -> None:
    with pytest.raises(UsageError, match="judges one ring a tier"):
        parse_plan(SMALL_PLAN + DECIDE.format(rule="no-regression"), origin="test")
    plan = load_plan(str(ROOT / "experiments" / "plans" / "seed-rule.toml"))
    assert plan.decision.rule == "no-regression"
    grid = ArmGrid(plan, 32_768)
    assert all(grid.rings(tier) == (32_768, 49_152) for tier in plan.grid.tiers)


def two_engines(store: TrialStore, speed: Gain) -> tuple[StudyRecord, StudyRecord]:
    text = SMALL_PLAN + DECIDE.format(rule="holm-t")
    one, other = (study_of(text, engine(version)) for version in ("0.1.0+aa", "0.2.0+bb"))
    fill(store, one, faster_at_64)
    fill(store, other, faster_at_64, speed)
    return one, other


def slower_with_the_drafter(pair: PairSpec) -> float:
    return (0.95 if (pair.tier_cells, pair.mode) == (32, "on") else 1.05) + noise(pair)


def test_two_engines_on_one_plan_are_paired_by_passage_and_arm() -> None:
    store = MemoryStore()
    found = compare_studies(store, *two_engines(store, slower_with_the_drafter))
    changes = {(c.found.tier_cells, c.found.mode): c for c in found.changes}
    assert {place: c.found.verdict for place, c in changes.items()} == {
        (32, "off"): "better", (32, "on"): "worse", (64, "off"): "better", (64, "on"): "better",
    }  # fmt: skip
    lost = changes[32, "on"]
    assert lost.found.mean == pytest.approx(-0.0502, abs=1e-3)
    assert (lost.found.passages, lost.rings, lost.other_tokens) == (3, 2, 0)
    assert not lost.harmless
    assert found.one_machine


def test_only_the_engine_may_differ() -> None:
    store = MemoryStore()
    one, _ = two_engines(store, faster_at_64)
    stranger = study_of(SMALL_PLAN, engine("0.2.0+bb"))
    with pytest.raises(StoreError, match="differ in plan_sha256; only the engine may"):
        compare_studies(store, one, stranger)
    with pytest.raises(StoreError, match="both are study"):
        compare_studies(store, one, one)


def test_the_commands_print_words_and_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    with DuckStore(path) as store:
        one, other = two_engines(store, slower_with_the_drafter)
    result = CliRunner().invoke(app, ["verdict", one.study, "--db", str(path)])
    assert result.exit_code == 0, result.stderr
    for word in ("better", "equivalent", "+10.1%", "Holm over"):
        assert word in result.stdout
    result = CliRunner().invoke(app, ["compare", one.study, other.study, "--db", str(path)])
    assert result.exit_code == 0, result.stderr
    for word in ("0.1.0+aa", "0.2.0+bb", "worse", "-4.9%", "shown at 3 of 4 entries, not at 32 on"):
        assert word in result.stdout
    result = CliRunner().invoke(app, ["compare", one.study, one.study, "--db", str(path)])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
