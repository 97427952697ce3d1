"""A small run of `experiments/kill`: SIGKILL at random moments, and the same set of trials."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "kill" / "run.py"


@pytest.fixture(scope="module")
def kill() -> ModuleType:
    if not SCRIPT.is_file():
        pytest.skip("the experiments are not here")
    spec = importlib.util.spec_from_file_location("kill_experiment", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "setup",
    [
        {"kills": 4, "seed": 3},
        {"kills": 4, "seed": 1, "workers": "2", "isolation": "worker", "store": "lines"},
    ],
    ids=["one worker, database", "two workers, lines"],
)
def test_a_sweep_that_is_killed_again_and_again_ends_with_the_same_trials(
    kill: ModuleType, setup: dict[str, Any], tmp_path: Path
) -> None:
    calm = kill.Sweep(tmp_path / "calm", kill.Setup(**setup, tiers=(32,), passages=8))
    wild = kill.Sweep(tmp_path / "wild", calm.setup)
    kill.undisturbed(calm)
    course = kill.disturbed(wild)
    found = kill.compare(calm, wild)
    if not found["same_study"]:
        pytest.skip("the engine's sources were edited while this test ran")
    assert len(course.killed) == setup["kills"]
    assert "driver" in course.killed
    assert kill.is_same(found), found
