"""Acceptance on the device against plain torch, whatever was drafted and however many rows.

Held: every entry of the board equals the reference's, entries that are not written keep what they
had, and the loop of `Engine.collect` counts the same drafts.
"""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.config import MAX_DRAFTS, MAX_ROWS
from strata.kernels.accept import ROUNDS_KEPT, Board, ref
from strata.kernels.accept.board import BOARD_SHAPE
from tests.kernels.devices import DEVICES

triton_accept = pytest.importorskip("strata.kernels.accept.triton")

FEW_TOKENS = st.lists(st.integers(0, 1), min_size=MAX_ROWS, max_size=MAX_ROWS)


def board(
    device: str, cells: int, page_cells: int, counters: tuple[int | None, int | None] = (None, None)
) -> Board:
    """Return a board whose entries all differ, beside counters of pages and experts."""
    memory = torch.zeros(BOARD_SHAPE, dtype=torch.long, device=device)
    made = Board.over(
        memory,
        *(
            None if n is None else torch.zeros(n, 4, dtype=torch.long, device=device)
            for n in counters
        ),
    )
    for number, field in enumerate(fields(made), 1):
        tensor = getattr(made, field.name)
        tensor.copy_((torch.arange(tensor.numel()) - 1000 * number).view_as(tensor))
    made.start(cells, 7, page_cells)
    return made


def contents(made: Board) -> dict[str, list[int]]:
    if made.positions.is_cuda:
        torch.cuda.synchronize()
    return {field.name: getattr(made, field.name).tolist() for field in fields(made)}


def shares_of(made: Board, rows: int) -> torch.Tensor:
    """Return shares of targets that could be drawn."""
    return torch.ones(rows, device=made.positions.device)


def counted(tokens: list[int], targets: list[int], rows: int, limit: int) -> int:
    accepted = 0
    while accepted < min(rows - 1, limit) and tokens[accepted + 1] == targets[accepted]:
        accepted += 1
    return accepted


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=150)
@given(
    tokens=FEW_TOKENS,
    targets=FEW_TOKENS,
    matching=st.integers(0, MAX_ROWS),
    rows=st.integers(1, MAX_ROWS),
    limit=st.integers(0, MAX_DRAFTS),
    cells=st.integers(0, 200_000),
    page_cells=st.sampled_from([1, 3, 4, 16, 1024]),
    counters=st.tuples(st.sampled_from([None, 1, 3, 48]), st.sampled_from([None, 1])),
    before=st.integers(0, 2 * ROUNDS_KEPT),
)
def test_every_entry_is_the_reference_s(
    device: str,
    tokens: list[int],
    targets: list[int],
    matching: int,
    rows: int,
    limit: int,
    cells: int,
    page_cells: int,
    counters: tuple[int | None, int | None],
    before: int,
) -> None:
    tokens[1 : matching + 1] = targets[:matching]
    tokens = tokens[:MAX_ROWS]
    got, expected = (board(where, cells, page_cells, counters) for where in (device, "cpu"))
    for made in (got, expected):
        made.tokens.copy_(torch.tensor(tokens))
        made.targets.copy_(torch.tensor(targets))
        made.limit.fill_(limit)
        made.rounds.fill_(before)
    for run, made in ((triton_accept, got), (ref, expected)):
        run.accept(made, rows=rows, page_cells=page_cells, shares=shares_of(made, rows))
    after = contents(got)
    assert after == contents(expected)
    accepted = counted(tokens, targets, rows, limit)
    assert after["accepted"] == [accepted]
    result = got.result[before % ROUNDS_KEPT].tolist()
    assert result[:rows] == targets[:rows]
    counts = got.page_counts.tolist() + got.expert_counts.tolist()
    assert result[MAX_ROWS:] == [accepted, limit, *counts]
    assert after["rounds"] == [before + 1]
    assert after["tokens"] == [targets[accepted], *tokens[1:]]
    end = cells + accepted + 1
    assert after["positions"] == list(range(end, end + MAX_ROWS))
    assert after["ahead"] == list(range(end + 1, end + 1 + MAX_ROWS))
    assert after["own_pages"] == [at // page_cells for at in range(end, end + MAX_ROWS)]
    assert after["written"] == list(range(cells, cells + MAX_ROWS))
    assert after["written_ahead"] == list(range(cells + 1, cells + 1 + MAX_ROWS))


@pytest.mark.parametrize("device", DEVICES)
def test_rounds_follow_one_another(device: str) -> None:
    made = board(device, 30, 4)
    end, token = 30, 7
    for accepted, rows in ((2, 4), (0, 1), (7, 8), (0, 3), (1, 2)):
        assert made.positions.tolist() == list(range(end, end + MAX_ROWS))
        assert made.tokens[0] == token
        targets = torch.arange(100 + end, 100 + end + MAX_ROWS)
        made.targets.copy_(targets)
        made.tokens[1:].fill_(-1)
        made.tokens[1 : accepted + 1] = targets[:accepted].to(device)
        triton_accept.accept(made, rows=rows, page_cells=4, shares=shares_of(made, rows))
        end, token = end + accepted + 1, 100 + end + accepted
    contents(made)  # waits
    # Of five rounds the last four are kept, the last one where the first was.
    assert made.result[:, MAX_ROWS].tolist() == [1, 0, 7, 0]


@pytest.mark.parametrize("device", DEVICES)
def test_rounds_that_nobody_reads_give_their_counts_back(device: str) -> None:
    made = board(device, 30, 4, (3, 1))
    for read in range(6):
        counts = [made.page_counts.tolist(), made.expert_counts.tolist()]
        for _ in range(2):
            made.page_counts.add_(5)
            made.expert_counts.add_(7)
            triton_accept.accept(made, rows=1, page_cells=4, shares=shares_of(made, 1))
        contents(made)  # waits
        made.restore_counts(read)
        assert [made.page_counts.tolist(), made.expert_counts.tolist()] == counts
        made.rounds.fill_(read)
        made.page_counts.add_(1)
        triton_accept.accept(made, rows=1, page_cells=4, shares=shares_of(made, 1))
