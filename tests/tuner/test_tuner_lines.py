"""Trials that come home as JSON lines: whole, once, and only those of their study."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tuner_samples import all_pairs, make_records

from strata.errors import StoreError
from strata.tuner.drive import study_folder
from strata.tuner.store import JsonlStore, MemoryStore, export_jsonl, import_study
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord


def test_jsonl_goes_home_and_twice_is_once(study: StudyRecord, tmp_path: Path) -> None:
    away = MemoryStore()
    away.add_study(study)
    for pair in all_pairs(study)[:2]:
        away.add_trials(make_records(pair))
    assert export_jsonl(away, study.study, tmp_path / "t.jsonl") == 8
    with DuckStore(tmp_path / "t.duckdb") as home:
        assert import_study(home, tmp_path / "t.jsonl") == (study, 8, 0)
        assert import_study(home, tmp_path / "t.jsonl") == (study, 0, 8)
        assert home.trials(study.study) == away.trials(study.study)


def test_jsonl_with_other_figures_is_refused(study: StudyRecord, tmp_path: Path) -> None:
    home = MemoryStore()
    home.add_study(study)
    pair = all_pairs(study)[0]
    home.add_trials(make_records(pair))
    away = MemoryStore()
    away.add_study(study)
    away.add_trials(make_records(pair, gain=1.5))
    export_jsonl(away, study.study, tmp_path / "t.jsonl")
    with pytest.raises(StoreError, match="other figures"):
        import_study(home, tmp_path / "t.jsonl")


@pytest.mark.parametrize("cut", [1, 200, 2500])
def test_a_cut_jsonl_loses_its_last_pair_only(cut: int, study: StudyRecord, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    pairs = all_pairs(study)
    store = JsonlStore(path)
    store.add_study(study)
    for pair in pairs[:3]:
        store.add_trials(make_records(pair))
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    store = JsonlStore(path)
    assert store.trials(study.study) == [r for p in pairs[:2] for r in make_records(p)]
    store.add_trials(make_records(pairs[2]))
    store.close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[]", "line 2: expected a JSON object"),
        ('{"record": "strata.trial/9"}', "line 2: expected record"),
        ('{"record": "strata.trial/1", "x": 1}', "line 2: "),
    ],
)
def test_a_damaged_jsonl_names_its_line(
    line: str, message: str, study: StudyRecord, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(study.to_json()) + "\n" + line + "\n")
    with pytest.raises(StoreError, match=message):
        import_study(MemoryStore(), path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[" * 5_000 + "]" * 5_000, "line 2 has lists or objects that lie too deep"),
        ('{"a":' * 5_000 + "1" + "}" * 5_000, "line 2 has lists or objects that lie too deep"),
        ("9" * 5_000, "line 2 has an integer of too many digits"),
    ],
)
def test_json_that_python_refuses_is_one_sentence(
    value: str, message: str, study: StudyRecord, tmp_path: Path
) -> None:
    path = tmp_path / "t.jsonl"
    for text in (value, f'{{"record": "strata.trial/3", "message": {value}}}'):
        path.write_text(json.dumps(study.to_json()) + "\n" + text + "\n")
        with pytest.raises(StoreError, match=message):
            import_study(MemoryStore(), path)


@pytest.fixture
def lines(study: StudyRecord, tmp_path: Path) -> Path:
    """Return a file of two whole pairs, without a manifest."""
    with JsonlStore(tmp_path / "t.jsonl") as store:
        store.add_study(study)
        for pair in all_pairs(study)[:2]:
            store.add_trials(make_records(pair))
    return tmp_path / "t.jsonl"


@pytest.mark.parametrize("changed", [False, True])
def test_a_trial_twice_is_refused_at_the_end_too(changed: bool, lines: Path) -> None:
    """A line behind the last whole pair looks like a pair that was cut short, and is none."""
    every = lines.read_text().splitlines()
    again = every[2].replace('"kv_hits":90', '"kv_hits":80') if changed else every[2]
    lines.write_text("\n".join([*every, again]) + "\n")
    with pytest.raises(StoreError, match=r"line 10: trial \w+ stands in line 3 already"):
        import_study(MemoryStore(), lines)


def test_pairs_of_another_plan_are_refused(study: StudyRecord, lines: Path) -> None:
    elsewhere = replace(all_pairs(study)[0], passage="32:7")
    with lines.open("a") as file:
        file.writelines(run.to_line() + "\n" for run in make_records(elsewhere))
    with pytest.raises(StoreError, match=r"line 10: trial '\w+' belongs to no pair of its study's"):
        import_study(MemoryStore(), lines)


def test_a_pair_that_lacks_a_run_in_the_middle_is_refused(lines: Path) -> None:
    every = lines.read_text().splitlines()
    lines.write_text("\n".join([*every[:2], *every[3:]]) + "\n")
    with pytest.raises(StoreError, match="holds 3 of 4 runs"):
        import_study(MemoryStore(), lines)


@pytest.mark.parametrize("name", ["../../evil", "/evil", "a/b", "..", "", ".", "a\nb", "a" * 201])
def test_a_study_whose_name_is_a_path_is_refused(
    name: str, study: StudyRecord, lines: Path, tmp_path: Path
) -> None:
    first, *rest = lines.read_text().splitlines()
    lines.write_text("\n".join([json.dumps(json.loads(first) | {"name": name}), *rest]) + "\n")
    with pytest.raises(StoreError, match=r"line 1: key 'name' cannot be"):
        import_study(MemoryStore(), lines)
    with pytest.raises(StoreError, match="has no name"):
        study_folder(tmp_path, replace(study, name=name))


def test_another_default_ring_than_the_search_spaces_is_refused(lines: Path) -> None:
    first, *rest = lines.read_text().splitlines()
    changed = json.dumps(json.loads(first) | {"default_ring_cells": 32})
    lines.write_text("\n".join([changed, *rest]) + "\n")
    with pytest.raises(StoreError, match=r"damaged: its search space or its default ring of 32"):
        import_study(MemoryStore(), lines)
