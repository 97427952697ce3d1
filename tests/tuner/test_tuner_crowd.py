"""As many workers as pairs, cores, GPUs and memory allow, whatever is asked for."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuner_samples import FACTS, SMALL_PLAN
from typer.testing import CliRunner

from strata.cli.tune import app
from strata.tuner import crowd, drive
from strata.tuner.arms import ArmGrid
from strata.tuner.crowd import available_bytes, most_pairs, most_workers
from strata.tuner.plan import Plan


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 10 GiB left, in a group that may take 6 more."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {10 << 20} kB\n")
    (tmp_path / "memory.max").write_text(f"{8 << 30}\n")
    (tmp_path / "memory.current").write_text(f"{2 << 30}\n")
    monkeypatch.setattr(crowd, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(crowd, "GROUP", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("known", "pairs", "most", "reason"),
    [
        ({}, 9, 9, "because 9 pairs are left"),
        ({"cpus_usable": 4}, 9, 4, "because there are 4 CPU cores"),
        ({"cpus_usable": 64, "gpus": 2}, 9, 2, "because there are 2 GPUs"),
        ({"cpus_usable": 4, "worker_bytes": 2 << 30}, 9, 3, "because the memory holds no more"),
        ({"worker_bytes": 99 << 30}, 9, 1, "because the memory holds no more"),
        ({}, 0, 1, "because 0 pairs are left"),
    ],
)
def test_what_there_is_least_of_limits_the_workers(
    known: dict[str, int], pairs: int, most: int, reason: str, memory: Path
) -> None:
    count, words = most_workers(1000, pairs=pairs, facts=replace(FACTS, environment=known))
    assert count == most
    assert words.startswith(reason)
    assert most_workers(most, pairs=pairs, facts=replace(FACTS, environment=known)) == (most, "")


def test_a_group_without_a_limit_has_what_the_machine_has(memory: Path) -> None:
    assert available_bytes() == 6 << 30
    (memory / "memory.max").write_text("max\n")
    assert available_bytes() == 10 << 30
    (memory / "meminfo").unlink()
    assert available_bytes() is None


@given(st.integers(1, 1024), st.integers(0, 99), st.integers(1, 64), st.integers(1, 1 << 50))
def test_there_is_always_one_and_never_more_than_asked(
    asked: int, pairs: int, cores: int, each: int
) -> None:
    facts = replace(FACTS, environment={"cpus_usable": cores, "worker_bytes": each})
    count, words = most_workers(asked, pairs=pairs, facts=facts)
    assert 1 <= count <= min(asked, max(1, pairs), cores)
    assert bool(words) == (count < asked)


def test_a_plan_comes_to_no_more_pairs_than_that(plan: Plan) -> None:
    for default in (32_768, 1_024):
        pairs = ArmGrid(plan, default).every_pair(study="s")
        assert sum(1 for _ in pairs) <= most_pairs(plan)


def test_a_thousand_workers_are_as_many_as_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    fake = (sys.executable, str(Path(__file__).with_name("fake_trial.py")), "--pids", str(pids))
    monkeypatch.setattr(drive, "server_command", lambda **words: fake)
    plan = tmp_path / "p.toml"
    text = SMALL_PLAN.replace("tiers = [32, 64]", 'tiers = [32]\nmodes = ["off"]')
    plan.write_text(text.replace("fresh = [1, 2]", "fresh = []"))
    words = ["run-trials", str(plan), "--jsonl", str(tmp_path / "t.jsonl"), "--workers", "1000"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.stderr
    warned = [line for line in result.stderr.splitlines() if "--workers" in line]
    assert warned == ["warning: --workers 1000: 2 measure, because 2 pairs are left"]
    assert len(set(pids.read_text().split())) <= 2 + 2, "servers, and a fork for each pair"
