"""One block a session, carved by name."""

from __future__ import annotations

import pytest
import torch

from strata.arena import ALIGNMENT_BYTES, Arena, tensor_bytes
from strata.errors import BudgetError

CPU = torch.device("cpu")


def test_what_is_carved_is_what_the_ledger_says() -> None:
    shapes = {"a": (3, 5), "b": (7,), "c": ()}
    arena = Arena(sum(tensor_bytes(shape, torch.float32) for shape in shapes.values()), CPU)
    views = {name: arena.take(name, shape, torch.float32) for name, shape in shapes.items()}
    assert sum(arena.ledger.values()) == arena.size_bytes
    for i, (name, view) in enumerate(views.items()):
        assert view.shape == shapes[name]
        assert arena.owns(view)
        assert view.data_ptr() % ALIGNMENT_BYTES == views["a"].data_ptr() % ALIGNMENT_BYTES
        assert not view.any()
        view.fill_(i + 1)
    assert [float(view.amax()) for view in views.values()] == [1, 2, 3], "tensors overlap"
    assert not arena.owns(torch.zeros(1))


def test_several_tensors_share_a_name() -> None:
    arena = Arena(4 * ALIGNMENT_BYTES, CPU)
    for _ in range(3):
        arena.take("tables", (2, 2), torch.int32)
    assert arena.ledger == {"tables": 3 * ALIGNMENT_BYTES}
    with pytest.raises(AssertionError, match="arena overrun: more needs"):
        arena.take("more", (ALIGNMENT_BYTES + 1,), torch.uint8)


def test_memory_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(BudgetError, match=r"cpu has no .* left for this session"):
        Arena(1 << 60, CPU)
