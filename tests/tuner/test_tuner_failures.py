"""A ring that fails on the real engine, at its opening, in its warm-up or while it decodes."""

from __future__ import annotations

import sys
from pathlib import Path

import failing_trial as fails
import pytest
from test_tuner_sweep import sweep

from strata.models.decide import Decision, decide_pairs
from strata.models.frame import pair_table
from strata.models.samples import Samples
from strata.tuner.arms import lay_grid
from strata.tuner.conclude import rule_of
from strata.tuner.evidence import evidence_of
from strata.tuner.plan import parse_plan
from strata.tuner.runner import ProcessRunner
from strata.tuner.store import MemoryStore
from strata.tuner.study import StudyRecord, create_study
from strata.tuner.verdict import verdict_of

HERE = Path(__file__).parent
TINY = HERE.parent / "data" / "tiny"
PLAN = """
name = "failing"
[grid]
tiers = [32]
rings = [32]
modes = ["off"]
default_ring = 64
[passages]
search = [0]
fresh = [1, 2, 3, 4, 5, 6, 7, 8]
[measure]
max_new = 12
"""
Swept = tuple[MemoryStore, StudyRecord]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    log = tmp_path_factory.mktemp("failing") / "trials.log"
    words = (str(HERE / "failing_trial.py"), "--model", str(TINY), "--device", "cpu")
    plan, store = parse_plan(PLAN, origin="failing"), MemoryStore()
    with ProcessRunner([sys.executable, *words], log=log) as runner:
        facts = runner.describe(plan.passage_names())
        grid = lay_grid(plan, device_default_cells=64, max_positions=facts.max_positions)
        study = create_study(grid, facts, created_at="2026-01-02T03:04:05+00:00")
        store.add_study(study)
        sweep(study, store, runner)
    return store, study


def judged_alone(swept: Swept, seed: int) -> Decision:
    """Return what the rule makes of the study with the failures of one seed alone."""
    store, study = swept
    frame = evidence_of(store, study)
    others = [f"32:{one}" for one in fails.FAILS if one != seed]
    pairs = pair_table(frame[~frame["passage"].isin(others)])
    return decide_pairs(pairs, rule_of(study), 64, Samples(search=1, fresh=4))


@pytest.mark.parametrize(
    ("seed", "arm"),
    [
        (fails.OPENING, "arm"),
        (fails.WARM_UP, "arm"),
        (fails.DECODE, "arm"),
        (fails.BESIDE, "arm"),
        (fails.ALONE, "default"),
    ],
)
def test_where_a_session_fails_the_verdict_says_whose_failure_it_is(
    swept: Swept, seed: int, arm: str
) -> None:
    store, study = swept
    runs = [one for one in store.trials(study.study) if one.passage == f"32:{seed}"]
    lost = [one for one in runs if one.kind != "ok"]
    assert len(lost) == (3 if seed == fails.DECODE else 4), "what had run before keeps its figures"
    assert {(one.kind, one.failed_arm) for one in lost} == {("out of memory", arm)}
    (entry,) = judged_alone(swept, seed).entries
    if arm == "arm":
        assert entry.reason == "failed on 1 of 4 fresh passages (out of memory)"
        assert entry.ring_cells == 64
        assert not entry.harmless
    else:
        assert "failed" not in entry.reason
        assert entry.best is not None
        assert entry.best.passages == 3


def test_the_whole_study_names_them_all(swept: Swept) -> None:
    found = verdict_of(*swept)
    assert found.reasons == ["undecided at 32 off: failed on 4 of 8 fresh passages (out of memory)"]
    assert "confirmed on fresh" in found.note
