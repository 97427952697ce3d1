"""A small run of `experiments/kill`: SIGKILL at random moments, and the same set of trials."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
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


@pytest.fixture(scope="module")
def calm(kill: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the sweep that nothing disturbs: one worker, into a database."""
    folder = tmp_path_factory.mktemp("kills") / "calm"
    sweep = kill.Sweep(folder, kill.Setup(kills=0, tiers=(32,), passages=24))
    kill.undisturbed(sweep)
    return sweep


@pytest.mark.parametrize(
    "changes",
    [
        {"kills": 4, "seed": 3},
        {"kills": 4, "seed": 1, "workers": "2", "isolation": "worker", "store": "lines"},
    ],
    ids=["one worker, database", "two workers, lines"],
)
def test_a_sweep_that_is_killed_again_and_again_ends_with_the_same_trials(
    kill: ModuleType, calm: Any, changes: dict[str, Any], tmp_path: Path
) -> None:
    wild = kill.Sweep(tmp_path / "wild", replace(calm.setup, **changes))
    course = kill.disturbed(wild)
    found = kill.compare(calm, wild)
    if not found["same_study"]:
        pytest.skip("the engine's sources were edited while this test ran")
    assert len(course.killed) == changes["kills"]
    assert "driver" in course.killed
    assert kill.is_same(found), found
