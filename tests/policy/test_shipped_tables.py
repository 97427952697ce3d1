"""The tables that ship can be read, speak of a device, and are named where people look."""

import json
from pathlib import Path

import pytest

from strata.policy import load_table
from strata.policy.search import shipped_folder

SHIPPED = sorted(shipped_folder().glob("*.json"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_table_is_sound_and_named(path: Path) -> None:
    table = load_table(path)
    assert table.fingerprint.device.startswith("NVIDIA")
    assert table.provenance["study"]
    assert len(table.documents or ()) >= 16
    assert path.name in (path.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_ring_moves_only_on_evidence(path: Path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    for entry in document["entries"]:
        moved = entry["ring_cells"] != document["default_ring_cells"]
        assert moved == (entry["verdict"] == "better")
        if moved:
            assert entry["lower"] > document["margin"]
            assert entry["passages"] >= 12


def test_no_two_shipped_tables_speak_of_the_same_sessions() -> None:
    prints = [load_table(path).fingerprint for path in SHIPPED]
    assert len({str(one) for one in prints}) == len(prints)
