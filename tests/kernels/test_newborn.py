"""Slots of newborn pages against `Residency.admit_new`, window by window."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.config import Victims
from strata.kernels.newborn import bear_pages
from strata.kernels.resolve import resolve
from strata.kernels.resolve.state import FILLED, ResolveState
from tests.kernels.devices import DEVICES
from tests.kernels.test_resolve import CPU, Oracle, poisoned

triton_newborn = pytest.importorskip("strata.kernels.newborn.triton")
triton_resolve = pytest.importorskip("strata.kernels.resolve.triton")

LAYERS, PAGES, MOST_ROWS = 2, 60, 9
BLOCK = 8
"""Small, so that the loops over blocks turn."""


@st.composite
def sequences(draw: st.DrawFn) -> tuple[int, int, int, list[tuple[int, int]]]:
    """Return page cells, slots, the first base, and each window's rows and accepted rows."""
    page_cells = draw(st.sampled_from([1, 2, 3, 16]))
    tail = tail_of(page_cells)
    slots = draw(st.integers(tail + 1, tail + 12))
    base = draw(st.integers(0, 20 * page_cells))
    windows = []
    for _ in range(draw(st.integers(1, 8))):
        rows = draw(st.integers(1, MOST_ROWS))
        windows.append((rows, draw(st.integers(1, min(rows, 3)))))
    return page_cells, slots, base, windows


def tail_of(page_cells: int) -> int:
    return 1 + -(-MOST_ROWS // page_cells)


def run_sequence(
    case: tuple[int, int, int, list[tuple[int, int]]], victims: Victims, replace: bool, where: str
) -> None:
    page_cells, slots, base, windows = case
    device, tail = torch.device(where), tail_of(page_cells)
    oracles = [Oracle(PAGES, slots, victims) for _ in range(LAYERS)]
    states = [ResolveState.empty(LAYERS, PAGES, slots, victims, each) for each in (CPU, device)]
    born = -(-base // page_cells)
    for layer, oracle in enumerate(oracles):  # layers begin with different older pages
        newest = torch.arange(max(born - tail - layer, 0), born)[-slots:]
        oracle.resolve(newest, None)
        for state in states:
            kernel = resolve if state is states[0] else triton_resolve.resolve
            kernel(
                state, newest.to(state.table.device), poisoned(1, PAGES, state.table.device),
                layer=layer, distinct=True,
            )  # fmt: skip
    for rows, accepted in windows:
        last = (base + rows - 1) // page_cells
        for page in range(born, last + 1):
            for oracle in oracles:
                oracle.residency.admit_new(0, page, first_tail=page - tail + 1, replace=replace)
        born = max(born, last + 1)
        plan = {"rows": rows, "page_cells": page_cells, "tail": tail, "replace": replace}
        bear_pages(states[0], torch.tensor([base]), **plan)  # a CPU takes the reference
        at = torch.tensor([base], device=device)
        triton_newborn.bear_pages(states[1], at, block=BLOCK, **plan)
        own = base // page_cells
        for layer, oracle in enumerate(oracles):
            if replace:  # reads between births, of pages that are old enough to be victims
                asked = torch.arange(layer, max(own, 1), 3)[:slots]
                oracle.resolve(asked, own)
                for state in states:
                    kernel = resolve if state is states[0] else triton_resolve.resolve
                    kernel(
                        state, asked.to(state.table.device),
                        poisoned(1, PAGES, state.table.device),
                        layer=layer, distinct=True,
                        keep_from=torch.tensor([own], device=state.table.device),
                    )  # fmt: skip
                    oracle.check(state, layer)
            for state in states:
                oracle.residency.check_integrity()
                assert torch.equal(state.table[layer].cpu(), oracle.residency.table[0])
                assert torch.equal(state.owner[layer].cpu(), oracle.residency.owner[0])
                assert state.scalars[layer, FILLED] == oracle.residency.filled[0]
                assert (state.table[layer, own : last + 1] >= 0).all()
        base += accepted


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize(
    ("victims", "replace"), [("clock", False), ("clock", True), ("lrfu", False), ("lrfu", True)]
)
def test_births_are_those_of_residency(where: str, victims: Victims, replace: bool) -> None:
    @settings(
        max_examples=25 if where == "cpu" else 100,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(sequences())
    def check(case: tuple[int, int, int, list[tuple[int, int]]]) -> None:
        run_sequence(case, victims, replace, where)

    check()
