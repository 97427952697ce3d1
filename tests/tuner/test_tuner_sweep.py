"""The loop and its order: everything once, whoever stops it, and the store as the only truth."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from scripted import ScriptedRunner, sweep
from tuner_samples import FACTS, all_pairs, make_records

from strata.errors import StoreError
from strata.tuner.arms import ArmGrid
from strata.tuner.drive import _not_resumed
from strata.tuner.plan import Plan
from strata.tuner.sampler import ArmOrder
from strata.tuner.store import MemoryStore
from strata.tuner.study import StudyRecord, create_study
from strata.tuner.sweep import count_pairs, mean_gain, refuse_repeat


def with_sampler(grid: ArmGrid, name: str) -> ArmGrid:
    search = grid.plan.search.model_copy(update={"sampler": name})
    return ArmGrid(grid.plan.model_copy(update={"search": search}), grid.default_ring_cells)


@pytest.mark.parametrize("sampler", ["grid", "random", "tpe", "gp", "cost-model"])
def test_every_arm_is_asked_once(grid: ArmGrid, sampler: str) -> None:
    grid = with_sampler(grid, sampler)
    order = ArmOrder(grid, {})
    asked = []
    while (arm := order.ask()) is not None:
        asked.append(arm)
        order.tell(arm, None if len(asked) == 2 else arm.ring_cells / 100)
    assert sorted(asked) == sorted(grid.arms())


@pytest.mark.parametrize("sampler", ["grid", "random", "tpe", "cost-model"])
@pytest.mark.parametrize("done", [1, 5, 9])
def test_a_rebuilt_order_asks_only_the_rest(grid: ArmGrid, sampler: str, done: int) -> None:
    grid = with_sampler(grid, sampler)
    known = dict.fromkeys(grid.arms()[:done], 0.01)
    order = ArmOrder(grid, known)
    asked = []
    while (arm := order.ask()) is not None:
        asked.append(arm)
        order.tell(arm, 0.0)
    assert sorted(asked + list(known)) == sorted(grid.arms())


@pytest.mark.parametrize("sampler", ["grid", "random", "tpe", "cost-model"])
@pytest.mark.parametrize("stops", [[0], [1], [7, 1, 5]])
def test_a_stopped_sweep_goes_on_and_repeats_nothing(
    plan: Plan, study: StudyRecord, sampler: str, stops: Sequence[int]
) -> None:
    store, ran = MemoryStore(), []
    store.add_study(study)
    for stop in stops:
        runner = ScriptedRunner(stop_after=stop)
        with pytest.raises(KeyboardInterrupt):
            sweep(study, store, runner)
        ran += runner.ran
    last = ScriptedRunner()
    assert sweep(study, store, last) == len(last.ran)
    ran += last.ran
    assert sorted(ran) == sorted(pair.pair_id for pair in all_pairs(study))
    assert count_pairs(study, store) == (22, 22)
    again = ScriptedRunner()
    assert sweep(study, store, again) == 0


def test_the_cost_model_asks_the_same_after_a_stop(grid: ArmGrid) -> None:
    study = create_study(with_sampler(grid, "cost-model"), FACTS, created_at="2026-01-02")
    whole, store, ran = ScriptedRunner(), MemoryStore(), []
    for one in (store, undisturbed := MemoryStore()):
        one.add_study(study)
    sweep(study, undisturbed, whole)
    for stop in (8, 1, 2):
        runner = ScriptedRunner(stop_after=stop)
        with pytest.raises(KeyboardInterrupt):
            sweep(study, store, runner)
        ran += runner.ran
    sweep(study, store, last := ScriptedRunner())
    assert ran + last.ran == whole.ran


def test_progress_counts_every_pair(study: StudyRecord) -> None:
    store, seen = MemoryStore(), []
    store.add_study(study)
    sweep(study, store, ScriptedRunner(), on_pair=seen.append)
    assert [one.done_pairs for one in seen] == list(range(1, 23))
    assert {one.total_pairs for one in seen} == {22}
    assert all(a.done_work < b.done_work for a, b in itertools.pairwise(seen))
    assert seen[-1].done_work == seen[-1].total_work == seen[-1].work_here


def test_a_failing_arm_is_stored_and_does_not_stop_the_sweep(study: StudyRecord) -> None:
    store = MemoryStore()
    store.add_study(study)
    sweep(study, store, ScriptedRunner(kinds={32: "out of memory"}))
    kinds = [record.kind for record in store.trials(study.study)]
    assert len(kinds) == 88
    assert kinds.count("out of memory") == 4 * 12


def test_a_gain_is_of_whole_pairs_only(study: StudyRecord) -> None:
    pairs = [pair for pair in all_pairs(study) if pair.arm_ring_cells == 32][:2]
    records = make_records(pairs[0], gain=1.1)
    assert mean_gain(records, pairs) == pytest.approx(0.0953, abs=1e-4)
    broken = make_records(pairs[1], gain=9.0)
    broken[2] = make_records(pairs[1], kind="timeout", rounds_per_s=None)[2]
    assert mean_gain(records + broken, pairs) == mean_gain(records, pairs)
    assert mean_gain(broken, pairs) is None


def test_a_started_study_is_not_gone_on_with_unasked(study: StudyRecord) -> None:
    store = MemoryStore()
    store.add_study(study)
    refuse_repeat(study, store, resume=False, where="x")
    store.add_trials(make_records(all_pairs(study)[0]))
    refuse_repeat(study, store, resume=True, where="x")
    with pytest.raises(StoreError, match="has 1 of 22 pairs in x; go on with --resume"):
        refuse_repeat(study, store, resume=False, where="x")
    for pair in all_pairs(study)[1:]:
        store.add_trials(make_records(pair))
    refuse_repeat(study, store, resume=False, where="x")


def test_another_build_of_the_engine_is_named(study: StudyRecord) -> None:
    store = MemoryStore()
    store.add_study(study)
    facts = replace(FACTS, engine_version="0.1.0+11111111")
    other = create_study(study.grid, facts, created_at=study.created_at)
    assert _not_resumed(study, store) == ""
    words = _not_resumed(other, store)
    assert (
        words == f"study {study.study} of this plan differs in engine_version, so this is another"
    )
