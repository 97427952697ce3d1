"""Parked prompts are shared by processes, come back whole, and give way to newer ones."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from strata.config import SamplingParams
from strata.lm import LanguageModel
from strata.parked import Parked
from strata.passages import load_passage
from strata.tuner.arms import PairSpec
from strata.tuner.session_bench import SessionBench, open_session, park_prompt
from strata.tuner.shelf import HEAD_BYTES, Shelf, memory_bytes

LIMIT = 1 << 20


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    shelf = Shelf(LIMIT, places=4)
    yield shelf
    shelf.close()


def parked(seed: int, *, cells: int = 5, drafted: bool = True) -> Parked:
    torch.manual_seed(seed)
    return Parked(
        model_hash=f"m{seed}",
        tokens=torch.randint(99, (cells,), dtype=torch.int32),
        cells=torch.randn(2, cells, 2, 1, 4).bfloat16(),
        queries=torch.randn(2, 3, 2, 4).transpose(0, 1),
        hidden=torch.randn(1, 8),
        drafter_cells=torch.randn(cells, 2, 1, 4) if drafted else None,
    )


def same(one: Parked | None, other: Parked) -> bool:
    if one is None or one.model_hash != other.model_hash:
        return False
    names = ("tokens", "cells", "queries", "hidden")
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    if one.drafter_cells is not None and other.drafter_cells is not None:
        pairs.append((one.drafter_cells, other.drafter_cells))
    return (one.drafter_cells is None) == (other.drafter_cells is None) and all(
        torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs
    )


@pytest.mark.parametrize("drafted", [True, False])
@pytest.mark.parametrize("cells", [0, 1, 700])
def test_a_state_comes_back_to_the_last_bit(shelf: Shelf, drafted: bool, cells: int) -> None:
    assert shelf.get("a") is None
    state = parked(1, cells=cells, drafted=drafted)
    shelf.put("a", state)
    assert same(shelf.get("a"), state)
    assert shelf.get("b") is None


def test_another_process_finds_what_one_has_put(shelf: Shelf) -> None:
    child = os.fork()
    if child == 0:
        try:
            shelf.put("a", parked(1))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert same(shelf.get("a"), parked(1))


def test_the_oldest_give_way(shelf: Shelf) -> None:
    for number in range(6):
        shelf.put(str(number), parked(number))
    assert [shelf.get(str(number)) is not None for number in range(6)] == [False] * 2 + [True] * 4
    size = LIMIT // 2 // (2 * 2 * 4 * 2 + 2 * 4 * 4)
    shelf.put("large", parked(7, cells=size, drafted=True))
    assert shelf.get("large") is not None
    shelf.put("again", parked(8, cells=size, drafted=True))
    assert shelf.get("large") is None
    shelf.put("too large", parked(9, cells=4 * size))
    assert shelf.get("too large") is None


def test_a_newer_state_of_the_same_prompt_is_found(shelf: Shelf) -> None:
    shelf.put("a", parked(1, drafted=False))
    shelf.put("a", parked(1))
    found = shelf.get("a")
    assert found is not None
    assert found.drafter_cells is not None


def test_what_was_cut_short_is_not_there(shelf: Shelf) -> None:
    """A process that is killed while it writes leaves a file without a head."""
    shelf.put("a", parked(1))
    for file in shelf._files:
        if os.fstat(file).st_size:
            os.pwrite(file, bytes(HEAD_BYTES), 0)
    assert shelf.get("a") is None


def test_small_parts_outlive_their_file(shelf: Shelf) -> None:
    shelf.put("a", parked(1))
    found = shelf.get("a")
    assert found is not None
    kept = found.queries, found.hidden
    del found
    for number in range(2, 8):
        shelf.put(str(number), parked(number))
    assert torch.equal(kept[0], parked(1).queries)
    assert torch.equal(kept[1], parked(1).hidden)


def test_the_machine_has_memory() -> None:
    assert memory_bytes() > 1 << 28


def pair(**changes: object) -> PairSpec:
    facts: dict[str, object] = {
        "study": "", "split": "search", "tier_cells": 128, "depth_cells": 128, "passage": "128:0",
        "mode": "on", "spec": 2, "mtp_window_cells": 64, "default_ring_cells": 64,
        "arm_ring_cells": 48, "select": "0", "page_cells": 16, "victims": "clock",
        "vram_budget_bytes": None, "context_cells": 176, "max_new": 20, "warm_up": 8,
        "min_decode_s": 0.0,
    }  # fmt: skip
    return PairSpec(**(facts | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["off", "on"])
def test_a_shelved_prompt_decodes_as_one_that_was_run(
    tiny: LanguageModel, shelf: Shelf, mode: str
) -> None:
    """One parked state serves both modes and every ring."""
    spec = pair(mode=mode, spec=2 if mode == "on" else 0)
    shelf.put(spec.passage, park_prompt(tiny, pair()))
    state = shelf.get(spec.passage)
    assert state is not None
    bench = SessionBench(tiny, spec, 48, state)
    found = bench.run()
    bench.close()
    own = open_session(tiny, spec, 48)
    own.prefill(load_passage(spec.passage, tiny.tokenizer))
    done = own.generate(SamplingParams(max_new=20, ignore_eos=True))
    own.close()
    assert (found.token_hash, found.rounds) == (done.token_hash, done.rounds)
    assert (found.kv_hits, found.kv_misses) == (done.kv.hits, done.kv.misses)
    assert (found.accepted, found.drafted) == (list(done.accepted), list(done.drafted))
