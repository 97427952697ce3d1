"""What counts as evidence: the plan's own pairs, all of them, each text once, in agreement."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tuner_samples import FACTS, SMALL_PLAN, all_pairs, make_records
from typer.testing import CliRunner, Result

from strata.cli.policy import app as policy_app
from strata.cli.tune import app as tune_app
from strata.errors import StoreError
from strata.passages import documents
from strata.policy.table_file import load_table
from strata.tuner.arms import ArmGrid, PairSpec
from strata.tuner.conclude import conclude
from strata.tuner.evidence import refuse_partial
from strata.tuner.plan import parse_plan
from strata.tuner.record import TrialRecord
from strata.tuner.report import summarise
from strata.tuner.report.page import render
from strata.tuner.store import MemoryStore, TrialStore
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord, create_study
from strata.tuner.verdict import verdict_of

FRESH = SMALL_PLAN.replace("fresh = [1, 2]", "fresh = {fresh}").replace(
    "rings = [32, 64, 128]", "rings = [32, 128]"
)
ONE = FRESH.replace("tiers = [32, 64]", "tiers = [64]\nmodes = ['off']")
Runs = Callable[[PairSpec], list[TrialRecord]]


def study_of(fresh: list[int], text: str = FRESH) -> StudyRecord:
    grid = ArmGrid(parse_plan(text.format(fresh=fresh), origin="test"), 64)
    return create_study(grid, FACTS, created_at="2026-01-02T03:04:05+00:00")


def faster(pair: PairSpec) -> list[TrialRecord]:
    """Return a pair whose ring is a tenth faster at tier 64, with a little noise by passage."""
    noise = 0.001 * int(pair.passage.partition(":")[2])
    rings = pair.arm_ring_cells != 64 and pair.tier_cells == 64
    return make_records(pair, gain=(1.1 if rings else 1.0) + noise, token_hash=pair.passage * 8)


def filled(study: StudyRecord, runs: Runs = faster, store: TrialStore | None = None) -> TrialStore:
    store = MemoryStore() if store is None else store
    store.add_study(study)
    for pair in all_pairs(study):
        store.add_trials(runs(pair))
    return store


def words(store: TrialStore, study: StudyRecord) -> dict[tuple[int, str], str]:
    return {(e.tier_cells, e.mode): e.verdict for e in verdict_of(store, study).entries}


def run(app: object, *arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(one) for one in arguments])  # type: ignore[arg-type]
    assert result.exit_code == code, result.output
    return result


def test_a_ring_that_failed_on_most_passages_is_refused(tmp_path: Path) -> None:
    """It gains 5 % on the two passages that it came through on."""
    lines, db, out = tmp_path / "min-oom.jsonl", tmp_path / "t.duckdb", tmp_path / "t.json"
    packed = Path(__file__).with_name("min-oom.jsonl.xz").read_bytes()
    lines.write_bytes(lzma.decompress(packed))
    run(tune_app, "import", lines, "--db", db)
    said = run(tune_app, "verdict", "min-oom", "--db", db).stdout
    why = "failed on 10 of 12 fresh passages (out of memory)"
    assert f"undecided at 2K off: {why}" in said
    assert "better" not in said.replace("better, worse:", "")
    assert "not shown that no tier regresses" in said
    run(policy_app, "export", "--db", db, "--out", out)
    (entry,) = load_table(out).entries
    assert (entry.ring_cells, entry.verdict) == (1_024, "undecided")
    assert load_table(out).provenance["decision_2048_off"].startswith(why)


def test_a_part_of_a_study_is_undecided_and_gives_no_table(tmp_path: Path) -> None:
    study, db, out = study_of([1, 2, 3], ONE), tmp_path / "t.duckdb", tmp_path / "t.json"
    with DuckStore(db) as store:
        store.add_study(study)
        for pair in all_pairs(study)[:-1]:
            store.add_trials(faster(pair))
    total = len(all_pairs(study))
    so_far = f"undecided so far: {total - 1} of {total} decoding pairs were run"
    said = run(tune_app, "verdict", "small", "--db", db).stdout
    assert so_far in said.splitlines()
    assert "better" not in said.replace("better, worse:", "")
    refused = run(policy_app, "export", "--db", db, "--out", out, code=2)
    assert so_far in refused.stderr
    assert not out.exists()
    (tmp_path / "runs").mkdir()
    report = run(tune_app, "report", "small", "--db", db, "--out", tmp_path / "runs").stdout
    assert so_far in report
    assert "use it" not in report
    (page,) = (tmp_path / "runs").glob("*/report.html")
    assert so_far in page.read_text()
    assert not page.with_name("ring-policy.json").exists()
    run(policy_app, "export", "--db", db, "--out", out, "--partial")
    table = load_table(out)
    assert table.provenance["pairs"] == f"{total - 1} of {total}"
    assert {entry.verdict for entry in table.entries} == {"better"}
    with DuckStore(db) as store:
        store.add_trials(faster(all_pairs(study)[-1]))
    run(policy_app, "export", "--db", db, "--out", out)


def test_noise_that_is_looked_at_after_every_passage_is_never_exported() -> None:
    """Only the last look decides, so that looking often adopts nothing that it would not."""
    fresh = [1, 2, 3, 5]
    study = study_of(fresh, ONE)
    seeds = [0, *fresh]
    for draw in range(2):
        rng, store = np.random.default_rng(draw), MemoryStore()
        store.add_study(study)
        for seed in seeds:
            for pair in all_pairs(study):
                if pair.passage == f"64:{seed}":
                    gain = float(np.exp(rng.normal(0, 0.01)))
                    store.add_trials(make_records(pair, gain=gain))
            if seed != seeds[-1]:
                assert {entry.verdict for entry in conclude(store, study).entries} == {"undecided"}
                with pytest.raises(StoreError, match="undecided so far"):
                    refuse_partial(store, study)
        refuse_partial(store, study)


def test_passages_outside_the_plan_widen_nothing() -> None:
    """The sample was agreed on before anything was measured."""
    study = study_of([1, 2, 3])
    store = filled(study)
    pair = next(one for one in all_pairs(study) if one.split == "fresh")
    store.add_trials(make_records(replace(pair, passage=pair.passage + "0"), gain=2.0))
    for judge in (verdict_of, conclude):
        with pytest.raises(StoreError, match="belongs to no pair of its study's plan"):
            judge(store, study)


@pytest.mark.parametrize(
    ("fresh", "named"),
    [
        ([1, 1 + len(documents()), 1 + 2 * len(documents())], "64:29 (fresh) and 64:57 (fresh)"),
        ([len(documents()), 1, 2], "64:0 (search) and 64:28 (fresh)"),
    ],
)
def test_a_text_counts_once(fresh: list[int], named: str) -> None:
    study = study_of(fresh)
    store = filled(study)
    assert set(words(store, study).values()) == {"invalid"}
    assert any(named in line for line in verdict_of(store, study).reasons)
    assert {entry.ring_cells for entry in conclude(store, study).entries} == {64}


def other_tokens_beside_128(mode: str) -> Runs:
    def runs(pair: PairSpec) -> list[TrialRecord]:
        lies = pair.arm_ring_cells == 128 and pair.mode == mode
        return [replace(one, token_hash=("bb" if lies else "aa") * 32) for one in faster(pair)]

    return runs


def test_other_tokens_beside_another_ring_void_their_own_mode_alone() -> None:
    study = study_of([1, 2, 3])
    store = filled(study, other_tokens_beside_128("off"))
    found = words(store, study)
    assert (found[64, "off"], found[64, "on"]) == ("invalid", "better")
    assert found[32, "off"] != "invalid"
    (line,) = [one for one in verdict_of(store, study).reasons if one.startswith("invalid")]
    assert line.startswith("invalid at 64 off: wrong output on 4 of 4 passages (64:1: tokens ")
    drafter = filled(study, other_tokens_beside_128("on"))
    assert words(drafter, study)[64, "on"] == "invalid"
    assert words(drafter, study)[64, "off"] == "better"


def test_the_page_says_what_the_verdict_says() -> None:
    """Word for word, for each entry whose figures do not say it."""
    study = study_of([1, 2, 3], ONE)

    def runs(pair: PairSpec) -> list[TrialRecord]:
        lost = pair.split == "fresh" and pair.arm_ring_cells != 64
        failed: dict[str, object] = {"kind": "crash", "rounds_per_s": None, "failed_arm": "arm"}
        gone = failed if lost else {}
        return [replace(one, **gone) for one in faster(pair)]  # type: ignore[arg-type]

    store = filled(study, runs)
    lines = verdict_of(store, study).reasons
    assert lines == [
        "no evidence at 64 off: ring 32, chosen on search passages, failed on 3 of 3 fresh "
        "passages (crash)"
    ]
    page = render(summarise(store, study, conclude(store, study)))
    assert all(line in page for line in lines)
    assert "nothing usable was measured" not in page


def test_entries_without_another_ring_show_nothing(tmp_path: Path) -> None:
    """At tier 32 the default ring holds the whole context: nothing was held against it there."""
    text = FRESH.replace("rings = [32, 128]", "rings = [64]").replace(
        "default_ring = 64", "default_ring = 128"
    )
    plan = parse_plan(text.format(fresh=[1, 2, 3]), origin="test")
    study = create_study(ArmGrid(plan, 128), FACTS, created_at="2026-01-02T03:04:05+00:00")
    with DuckStore(tmp_path / "t.duckdb") as store:
        filled(study, lambda pair: make_records(pair, gain=1.1), store)
    said = run(tune_app, "verdict", study.study, "--db", tmp_path / "t.duckdb").stdout
    assert "is shown at all 2 entries" in said
