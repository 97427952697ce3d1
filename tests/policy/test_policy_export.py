"""From a trial database to the table that a session would obey."""

from __future__ import annotations

import dataclasses

import pytest
from policy_samples import ON_TINY, conditions_of
from typer.testing import CliRunner

from strata.cli.policy import app
from strata.policy import load_table

pytest.importorskip("duckdb")
pytest.importorskip("sklearn")

from strata.tuner.arms import ORDER, ArmGrid
from strata.tuner.environment import EngineFacts
from strata.tuner.plan import parse_plan
from strata.tuner.record import TrialRecord, planned
from strata.tuner.store import open_database
from strata.tuner.study import create_study

PLAN = """
name = "{name}"
[grid]
tiers = [32, 4096]
rings = [32, 64, 128]
modes = ["on"]
default_ring = 64
[passages]
search = [0, 1, 2]
fresh = [3, 4, 5, 6, 7]
[measure]
max_new = 12
"""
FACTS = EngineFacts(
    device="Device T",
    model_hash="ab" * 32,
    kv_dtype="float32",
    has_mtp=True,
    max_positions=8_192,
    default_ring_cells=1_024,
    passages_sha256="cd" * 32,
    engine_version="0.1.0+00000000",
    engine_commit=None,
    worker="w0",
    environment={"python": "3.11"},
)


def _runs(pair, rates, facts):
    """Return the four runs of a pair at the rounds per second that `rates` gives each ring."""
    seed = int(pair.passage.partition(":")[2])
    wobble = 1 + (-1) ** seed * (seed + 1) / 1_000
    for position in range(len(ORDER)):
        columns = planned(pair, position)
        rate = rates[pair.tier_cells].get(columns["ring_cells"], 100.0)
        if ORDER[position] == "arm":
            rate *= wobble
        yield TrialRecord(
            **columns,
            kind="ok",
            message="",
            tokens=pair.max_new,
            token_hash=pair.passage,
            rounds=6,
            decode_s=6 / rate,
            rounds_per_s=rate,
            tok_s=2 * rate,
            tokens_per_round=2.0,
            accepted=[6],
            drafted=[6],
            device=facts.device,
            model_hash=facts.model_hash,
            engine_version=facts.engine_version,
            started_at=f"2026-01-02T03:04:0{position}+00:00",
            worker=facts.worker,
        )


def _store(path, name, rates, facts=FACTS):
    grid = ArmGrid(parse_plan(PLAN.format(name=name), origin="test"), 64)
    study = create_study(grid, facts, created_at="2026-01-02T03:04:05+00:00")
    with open_database(path) as store:
        store.add_study(study)
        for arm in grid.arms():
            for pair in grid.pairs(arm, study=study.study):
                store.add_trials(list(_runs(pair, rates, facts)))
    return study


def _export(*words, code=0):
    result = CliRunner().invoke(app, ["export", *(str(word) for word in words)])
    assert result.exit_code == code, result.output
    return result


def _explained(table):
    rings = []
    for depth in (32, 4_096):
        words = ["explain", "--policy", "learned", "--table", str(table), "--depth", str(depth)]
        words += map(str, ON_TINY)
        result = CliRunner().invoke(app, [*words, "--max-new", "12", "--kv-resident", "4096"])
        assert result.exit_code == 0, result.output
        rings.append(int(result.stdout.split()[3]))
    return rings


def test_swapping_two_rings_in_the_database_swaps_the_table_and_the_choice(tiny, tmp_path):
    here = conditions_of(tiny)
    facts = dataclasses.replace(FACTS, device=here.device, model_hash=here.model_hash)
    good, bad = {32: 130.0}, {128: 130.0}
    for name, rates, rings in (
        ("first", {32: good, 4_096: bad}, [32, 128]),
        ("second", {32: bad, 4_096: good}, [64, 32]),
    ):
        db, out = tmp_path / f"{name}.duckdb", tmp_path / f"{name}.json"
        study = _store(db, name, rates, facts)
        result = _export("--db", db, "--out", out)
        assert str(out) in result.stdout
        assert "--kv-ring-table" in result.stderr
        table = load_table(out)
        assert table.provenance["study"] == study.study
        assert table.fingerprint.device == here.device
        assert _explained(out) == rings


def test_without_out_it_goes_where_sessions_look(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    study = _store(tmp_path / "a.duckdb", "one", {32: {}, 4_096: {}})
    _export("--db", tmp_path / "a.duckdb")
    table = load_table(tmp_path / f"home/strata/policies/{study.study}.json")
    assert {entry.ring_cells for entry in table.entries} == {64}


def test_a_study_must_be_named_where_there_are_several(tmp_path):
    db, out = tmp_path / "a.duckdb", tmp_path / "t.json"
    first = _store(db, "one", {32: {}, 4_096: {}})
    _store(db, "two", {32: {}, 4_096: {}})
    result = _export("--db", db, "--out", out, code=2)
    assert result.stderr.startswith("error: --study: name one of the studies")
    assert f"{first.study} (one)" in result.stderr
    _export("--db", db, "--out", out, "--study", "two")
    assert "no study matches" in _export("--db", db, "--study", "three", code=2).stderr


def test_a_database_that_is_not_there_is_one_sentence(tmp_path):
    result = _export("--db", tmp_path / "none.duckdb", code=2)
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "none.duckdb").exists()
