"""One contract, three stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tuner_samples import all_pairs, make_records, other_study

from strata.errors import StoreError
from strata.tuner.record import COLUMNS
from strata.tuner.store import JsonlStore, MemoryStore, TrialStore
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord

Open = Callable[[], TrialStore]


@pytest.fixture(params=["memory", "duck", "jsonl"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens the store again; the memory store is kept."""
    opened: list[TrialStore] = []

    def again() -> TrialStore:
        if request.param == "memory":
            opened.append(opened[0] if opened else MemoryStore())
        else:
            for store in opened:
                store.close()
            opened.append(
                DuckStore(tmp_path / "t.duckdb")
                if request.param == "duck"
                else JsonlStore(tmp_path / "t.jsonl")
            )
        return opened[-1]

    yield again
    for store in opened:
        store.close()


def test_what_was_added_comes_back_after_reopening(reopen: Open, study: StudyRecord) -> None:
    store = reopen()
    store.add_study(study)
    wanted = [record for pair in all_pairs(study)[:3] for record in make_records(pair)]
    store.add_trials(wanted[:4])
    store.add_trials(wanted[4:])
    store = reopen()
    assert store.studies() == [study]
    assert store.trials(study.study) == wanted
    assert store.trial_ids(study.study) == {record.trial_id for record in wanted}
    frame = store.frame(study.study)
    assert list(frame.columns) == list(COLUMNS)
    assert frame.loc[0, "accepted"] == [3]
    assert frame.loc[0, "ledger"] == wanted[0].ledger


def test_a_failed_run_has_a_kind_and_no_number(reopen: Open, study: StudyRecord) -> None:
    store = reopen()
    store.add_study(study)
    failed = make_records(all_pairs(study)[0], kind="timeout", rounds_per_s=None, ledger=None)
    store.add_trials(failed)
    frame = reopen().frame(study.study)
    assert set(frame["kind"]) == {"timeout"}
    assert frame["rounds_per_s"].isna().all()
    assert frame["ledger"].isna().all()


def test_a_study_is_added_once(reopen: Open, study: StudyRecord) -> None:
    store = reopen()
    store.add_study(study)
    store.add_study(replace(study, created_at="2027-01-01T00:00:00+00:00"))
    assert store.studies() == [study]
    with pytest.raises(StoreError, match="other facts"):
        store.add_study(replace(study, model_hash="99" * 32))


def test_a_trial_is_immutable_and_a_batch_is_all_or_none(reopen: Open, study: StudyRecord) -> None:
    store = reopen()
    store.add_study(study)
    pairs = all_pairs(study)
    store.add_trials(make_records(pairs[0]))
    again = make_records(pairs[1]) + make_records(pairs[0], gain=2.0)
    with pytest.raises(StoreError, match="stored already"):
        store.add_trials(again)
    assert reopen().trials(study.study) == make_records(pairs[0])


def test_tries_are_counted_by_pair_and_outcome(reopen: Open, study: StudyRecord) -> None:
    store = reopen()
    store.add_study(study)
    assert store.tries(study.study) == {}
    for pair, outcome in (("p", "begun"), ("p", "crash"), ("p", "begun"), ("q", "begun")):
        store.add_try(study.study, pair, outcome)  # type: ignore[arg-type]
    store.add_trials(make_records(all_pairs(study)[0]))
    store.add_try(study.study, "q", "lost")
    store = reopen()
    assert store.tries(study.study) == {"p": {"begun": 2, "crash": 1}, "q": {"begun": 1, "lost": 1}}
    assert len(store.trials(study.study)) == 4
    with pytest.raises(StoreError, match="was not added"):
        store.add_try("elsewhere", "p", "begun")


def test_a_trial_of_the_first_schema_stays_one(reopen: Open, study: StudyRecord) -> None:
    store = reopen()
    store.add_study(study)
    old = [replace(one, record="strata.trial/1") for one in make_records(all_pairs(study)[0])]
    assert "conditions" not in old[0].to_json()
    new = make_records(all_pairs(study)[1], conditions={"host": "here", "power_w": 600.5})
    store.add_trials(old)
    store.add_trials(new)
    assert reopen().trials(study.study) == old + new


def test_a_trial_needs_its_study(reopen: Open, study: StudyRecord) -> None:
    with pytest.raises(StoreError, match="was not added"):
        reopen().add_trials(make_records(all_pairs(study)[0]))


def test_a_study_is_found_by_prefix_or_name(reopen: Open, study: StudyRecord) -> None:
    store = reopen()
    store.add_study(study)
    assert store.study(study.study[:5]) == study
    assert store.study("small") == study
    with pytest.raises(StoreError, match=r"no study matches 'large'.*small"):
        store.study("large")


@pytest.mark.parametrize("kind", ["memory", "duck"])
def test_studies_do_not_mix(kind: str, study: StudyRecord, tmp_path: Path) -> None:
    store = MemoryStore() if kind == "memory" else DuckStore(tmp_path / "t.duckdb")
    other = other_study(study)
    for one in (study, other):
        store.add_study(one)
        store.add_trials(make_records(all_pairs(one)[0]))
    assert len(store.trials(study.study)) == len(store.trials(other.study)) == 4
    assert not store.trial_ids(study.study) & store.trial_ids(other.study)
    with pytest.raises(StoreError, match="several studies"):
        store.study("small")
    store.close()
