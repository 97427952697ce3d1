"""Studies on the move: Parquet and JSON lines with a manifest, whole or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tuner_samples import all_pairs, make_records

from strata.errors import StoreError
from strata.tuner.store import JsonlStore, MemoryStore, export_jsonl, import_study
from strata.tuner.store.duck import DuckStore
from strata.tuner.store.parquet import export_parquet
from strata.tuner.study import StudyRecord

MOVES = ["parquet", "jsonl"]


@pytest.fixture
def store(study: StudyRecord, tmp_path: Path) -> DuckStore:
    store = DuckStore(tmp_path / "here.duckdb")
    store.add_study(study)
    pairs = all_pairs(study)
    store.add_trials(make_records(pairs[0], gain=1 / 3))
    failed = make_records(pairs[1], kind="crash", message="it's a \"bug\"", rounds_per_s=None,
                          accepted=None, ledger=None)  # fmt: skip
    store.add_trials(failed)
    return store


def export(how: str, store: DuckStore, folder: Path) -> Path:
    target = folder / ("study" if how == "parquet" else "study.jsonl")
    assert (export_parquet if how == "parquet" else export_jsonl)(store, "small", target) == 8
    return target


def data_file(target: Path) -> Path:
    return target / "trials.parquet" if target.is_dir() else target


@pytest.mark.parametrize("how", MOVES)
def test_a_study_arrives_to_the_last_digit(
    how: str, store: DuckStore, study: StudyRecord, tmp_path: Path
) -> None:
    target = export(how, store, tmp_path)
    with DuckStore(tmp_path / "there.duckdb") as there:
        assert import_study(there, target) == (study, 8, 0)
        assert import_study(there, target) == (study, 0, 8)
        assert there.studies() == store.studies()
        assert there.trials(study.study) == store.trials(study.study)


@pytest.mark.parametrize("how", MOVES)
def test_any_damaged_byte_is_refused_and_named(how: str, store: DuckStore, tmp_path: Path) -> None:
    target = export(how, store, tmp_path)
    path = data_file(target)
    whole = path.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 12)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StoreError, match=rf"{path.name} is damaged: sha256"):
            import_study(MemoryStore(), target)
    path.write_bytes(whole[:-1])
    with pytest.raises(StoreError, match=rf"{path.name} is damaged: bytes {len(whole) - 1}"):
        import_study(MemoryStore(), target)
    path.unlink()
    with pytest.raises(StoreError, match=r"cannot be read: No such file"):
        import_study(MemoryStore(), target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "", "not JSON"),
        (lambda text: "[]", "no manifest of a study"),
        (lambda text: text.replace("strata.study-files/1", "x"), "no manifest of a study"),
        (lambda text: text.replace("trials.parquet", "../trials.parquet"), "is damaged"),
        (lambda text: text.replace("trials.parquet", "other.parquet"), "cannot be read"),
        (lambda text: text.replace('"rows": 8', '"rows": 9'), "holds 8 rows"),
        (lambda text: text.replace('"rows": 8,', ""), "is damaged"),
    ],
)
def test_a_damaged_manifest_is_refused(
    change: object, message: str, store: DuckStore, tmp_path: Path
) -> None:
    target = export("parquet", store, tmp_path)
    place = target / "manifest.json"
    place.write_text(change(place.read_text()))  # type: ignore[operator]
    with pytest.raises(StoreError, match=message):
        import_study(MemoryStore(), target)


def test_a_folder_without_a_manifest_is_no_study(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"manifest\.json cannot be read"):
        import_study(MemoryStore(), tmp_path)


def test_an_export_never_overwrites_a_folder(store: DuckStore, tmp_path: Path) -> None:
    target = export("parquet", store, tmp_path)
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    with pytest.raises(StoreError, match="is there already"):
        export_parquet(store, "small", target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    (tmp_path / "empty").mkdir()
    assert export_parquet(store, "small", tmp_path / "empty") == 8


def test_a_failed_export_leaves_nothing(
    store: DuckStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("strata.tuner.store.parquet.write_manifest", full)
    with pytest.raises(StoreError, match="No space left"):
        export_parquet(store, "small", tmp_path / "study")
    assert {path.name for path in tmp_path.iterdir()} <= {"here.duckdb", "here.duckdb.wal"}


def test_lines_that_grow_lose_their_manifest(
    store: DuckStore, study: StudyRecord, tmp_path: Path
) -> None:
    """A manifest of fewer lines would call the longer file damaged."""
    target = export("jsonl", store, tmp_path)
    with JsonlStore(target) as lines:
        lines.add_trials(make_records(all_pairs(study)[2]))
    assert import_study(MemoryStore(), target)[1] == 12


def test_lines_come_with_their_own_sum(store: DuckStore, tmp_path: Path) -> None:
    target = export("jsonl", store, tmp_path)
    manifest = json.loads((tmp_path / "study.jsonl.manifest.json").read_text())
    assert manifest["files"]["study.jsonl"]["rows"] == len(target.read_text().splitlines())
