"""Fixtures of the tuner's tests: a small plan, its grid and its study."""

from __future__ import annotations

import os

import pytest
from tuner_samples import FACTS, SMALL_PLAN

from strata.tuner.arms import ArmGrid
from strata.tuner.plan import Plan, parse_plan
from strata.tuner.study import StudyRecord, create_study

# Trial processes inherit it: two threads that wait for each other on a busy machine take minutes.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def plan() -> Plan:
    return parse_plan(SMALL_PLAN, origin="small.toml")


@pytest.fixture(scope="session")
def grid(plan: Plan) -> ArmGrid:
    return ArmGrid(plan, 64)


@pytest.fixture(scope="session")
def study(grid: ArmGrid) -> StudyRecord:
    return create_study(grid, FACTS, created_at="2026-01-02T03:04:05+00:00")
