"""Only the chosen ring is confirmed, and the verdict is that of confirming all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from planted_grid import PLAN, runs
from test_tuner_sweep import ScriptedRunner, sweep
from tuner_samples import FACTS, make_records

from strata.errors import UsageError
from strata.models.decide import chosen_rings
from strata.tuner.arms import ArmGrid, PairSpec
from strata.tuner.conclude import conclude
from strata.tuner.environment import EngineFacts
from strata.tuner.plan import parse_plan
from strata.tuner.record import TrialRecord
from strata.tuner.store import MemoryStore, TrialStore
from strata.tuner.study import StudyRecord, create_study
from strata.tuner.sweep import Progress, count_pairs
from strata.tuner.verdict import verdict_of

ALL = PLAN.replace("fresh = [1, 2]", "fresh = [1, 2, 3, 5]").replace(
    "search = [0]", "search = [0, 4]"
)
CHOSEN = ALL.replace("[measure]", 'confirm = "chosen"\n[measure]')


class Planted(ScriptedRunner):
    """Answers with the planted figures, of which a ring may fail."""

    def run_pair(
        self, spec: PairSpec, facts: EngineFacts, *, timeout_s: float
    ) -> list[TrialRecord]:
        if self.stop_after is not None and len(self.ran) >= self.stop_after:
            raise KeyboardInterrupt
        self.ran.append(spec.pair_id)
        if kind := self.kinds.get(spec.arm_ring_cells):
            return make_records(spec, kind=kind, rounds_per_s=None)
        return runs(spec)


def study_of(text: str) -> StudyRecord:
    grid = ArmGrid(parse_plan(text, origin="planted"), 8_192)
    return create_study(grid, FACTS, created_at="2026-01-02T03:04:05+00:00")


def measured(text: str, *runners: Planted) -> tuple[TrialStore, StudyRecord]:
    store, study = MemoryStore(), study_of(text)
    store.add_study(study)
    sweep(study, store, *(runners or (Planted(),)))
    return store, study


def fresh_rings(store: TrialStore, study: StudyRecord) -> dict[tuple[int, str], set[int]]:
    found: dict[tuple[int, str], set[int]] = {}
    for run in store.trials(study.study):
        if run.split == "fresh" and run.arm == "arm":
            found.setdefault((run.tier_cells, run.mode), set()).add(run.ring_cells)
    return found


@pytest.fixture(scope="module")
def undisturbed() -> tuple[TrialStore, StudyRecord, list[str]]:
    """Return a sweep that one runner did without a stop, to be read only, and its pairs."""
    runner = Planted()
    return *measured(CHOSEN, runner), runner.ran


def test_the_verdicts_are_those_of_confirming_all() -> None:
    store, study = measured(ALL)
    rings = chosen_rings(store.frame(study.study))
    less = MemoryStore()
    less.add_study(study)
    for run in store.trials(study.study):
        ring = next(
            one.ring_cells
            for one in store.trials(study.study)
            if one.pair_id == run.pair_id and one.arm == "arm"
        )
        if run.split == "search" or rings[run.tier_cells, run.mode] == ring:  # type: ignore[index]
            less.add_trials([run])
    assert len(less.trials(study.study)) < 0.6 * len(store.trials(study.study))
    few = conclude(less, study, partial=True).entries
    assert few == conclude(store, study).entries
    assert {entry.verdict for entry in few} > {"better"}
    assert {entry.verdict for entry in conclude(less, study).entries} == {"undecided"}


def test_a_sweep_confirms_the_chosen_ring_alone(
    undisturbed: tuple[TrialStore, StudyRecord, list[str]],
) -> None:
    few = undisturbed[:2]
    chosen = fresh_rings(*few)
    assert all(len(rings) == 1 for rings in chosen.values())
    candidates = verdict_of(*few).candidates
    assert {(c.tier_cells, c.mode): {c.ring_cells} for c in candidates} == chosen
    assert all(c.passages == 4 for c in candidates)
    assert "confirmed on fresh" in verdict_of(*few).note
    arms = [arm for arm in few[1].grid.arms() if arm.ring_cells != 8_192]
    places = {(arm.tier_cells, arm.mode) for arm in few[1].grid.arms()}
    assert count_pairs(few[1], few[0])[0] == 2 * len(arms) + len(places) + 4 * len(chosen)


@pytest.mark.parametrize("stops", [[0], [3, 40], [90, 1, 1]])
def test_a_stopped_sweep_comes_to_the_same_pairs(
    stops: Sequence[int], undisturbed: tuple[TrialStore, StudyRecord, list[str]]
) -> None:
    *_, whole = undisturbed
    store, study, ran = MemoryStore(), study_of(CHOSEN), []
    store.add_study(study)
    for stop in stops:
        runner = Planted(stop_after=stop)
        with pytest.raises(KeyboardInterrupt):
            sweep(study, store, runner)
        done, total = count_pairs(study, store)
        assert total == len(whole)
        ran += runner.ran
        assert done == len(ran)
    last = Planted()
    sweep(study, store, last)
    assert sorted(ran + last.ran) == sorted(whole)
    assert sweep(study, store, Planted()) == 0


def test_many_workers_come_to_the_same_pairs(
    undisturbed: tuple[TrialStore, StudyRecord, list[str]],
) -> None:
    workers, (*_, alone) = [Planted() for _ in range(3)], undisturbed
    measured(CHOSEN, *workers)
    assert sorted(one for worker in workers for one in worker.ran) == sorted(alone)


def test_progress_ends_at_its_total() -> None:
    seen: list[Progress] = []
    store, study = MemoryStore(), study_of(CHOSEN)
    store.add_study(study)
    sweep(study, store, Planted(), on_pair=seen.append)
    assert [one.done_pairs for one in seen] == list(range(1, len(seen) + 1))
    assert seen[-1].total_pairs == seen[0].total_pairs == len(seen)
    assert seen[-1].done_work == seen[-1].total_work


def test_rings_that_fail_are_not_confirmed() -> None:
    """Where every ring fails on the search passages nothing is left to confirm."""
    rings = (1_024, 2_048, 4_096, 12_288, 16_384, 24_576)
    store, study = measured(CHOSEN, Planted(kinds=dict.fromkeys(rings, "out of memory")))
    assert fresh_rings(store, study) == {}
    assert {entry.verdict for entry in conclude(store, study).entries} == {"no evidence"}
    some, other = measured(CHOSEN, Planted(kinds={12_288: "out of memory"}))
    assert all(12_288 not in rings for rings in fresh_rings(some, other).values())
    assert "confirmed on fresh" in verdict_of(some, other).note


def test_something_must_be_chosen_on() -> None:
    text = CHOSEN.replace("search = [0, 4]", "search = []")
    with pytest.raises(UsageError, match="confirm chosen needs search passages"):
        parse_plan(text, origin="planted")
