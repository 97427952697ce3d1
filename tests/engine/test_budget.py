"""A budget is what a GPU's driver gives: blocks of whole steps, and nothing beside them."""

from __future__ import annotations

import gc

import pytest
import torch

from strata.arena import BLOCK_STEP_BYTES, LEAST_BLOCK_BYTES, block_bytes, outside_bytes
from strata.cli.model_ledger import Ask, Ledger
from strata.config import (
    AUTO_WINDOW,
    KvConfig,
    SamplingParams,
    Selection,
    SessionConfig,
    SpecConfig,
)
from strata.errors import BudgetError
from strata.lm import bundled_model_path, load_model
from strata.session import create_session
from tests.conftest import prompt_of

MIB = 1 << 20
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_a_block_of_a_gpu_is_whole_steps_and_ten_mib_at_least() -> None:
    assert block_bytes(1, GPU) == LEAST_BLOCK_BYTES
    assert block_bytes(LEAST_BLOCK_BYTES + 1, GPU) == LEAST_BLOCK_BYTES + BLOCK_STEP_BYTES
    assert block_bytes(block_bytes(31 * MIB, GPU), GPU) == block_bytes(31 * MIB, GPU)
    assert (block_bytes(1, CPU), outside_bytes(CPU)) == (1, 0)


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    """Return the bundled model as it would be laid out on a GPU."""
    return Ledger.open(bundled_model_path(), "bfloat16")


def ask(depth: int, drafts: int, select: int, budget: int) -> Ask:
    return Ask(
        depth_cells=depth,
        max_new=64,
        drafts=drafts,
        select=str(select),
        page_cells=16,
        window=AUTO_WINDOW,
        budget_bytes=budget,
    )


@pytest.mark.parametrize("select", [0, 2_048])
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("depth", [8_192, 131_072])
def test_weights_arena_and_what_is_outside_fill_a_budget(
    ledger: Ledger, depth: int, drafts: int, select: int
) -> None:
    weights = block_bytes(ledger.model.weights.device_bytes, GPU)
    filled = 0
    for budget in (40 * MIB, 47 * MIB + 12_345, 80 * MIB):
        asked = ask(depth, drafts, select, budget)
        demand = ledger.demand(asked)
        try:
            demand.check(asked.minimum_cells)
        except BudgetError:
            continue
        for pool in (asked.minimum_cells, demand.largest_ring(demand.fewest_experts)):
            assert pool is not None
            slots = demand.most_experts(pool)
            arena = demand.arena_bytes(pool, slots)
            assert arena % BLOCK_STEP_BYTES == 0
            total = weights + arena + outside_bytes(GPU)
            assert total <= budget
            if slots is not None and slots < demand.num_experts:
                assert total > budget - BLOCK_STEP_BYTES, "an expert would still have fit"
                filled += 1
    assert filled


def test_a_dense_round_of_fewer_rows_takes_less(ledger: Ledger) -> None:
    """Splits of 128K cells for eight rows are 17 MiB, and a session without a drafter has one."""
    sizes = []
    for drafts in (0, 7):
        demand = ledger.demand(ask(131_072, drafts, 0, 80 * MIB))
        shape, dtype = demand.round_buffers(4_096, 4)["main.sums"]
        sizes.append(torch.zeros(shape, dtype=dtype, device="meta").nbytes)
    assert sizes[1] == 8 * sizes[0]


def forget() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@pytest.mark.gpu
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize(
    ("budget", "cells", "select"),
    [(40, 8_192, 0), (40, 8_192, 2_048), (48, 32_768, 2_048), (64, 60_000, 0)],
)
def test_pytorch_never_asks_for_more_than_a_budget(
    budget: int, cells: int, select: int, drafts: int
) -> None:
    """The process's own figure: other processes may use the device, and the driver counts all."""
    forget()
    start = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    model = load_model(bundled_model_path(), "cuda")
    ids = prompt_of(model, cells)
    for ring in (4_096, 6_144):  # the second session's blocks are of other sizes
        config = SessionConfig(
            kv=KvConfig(resident_cells=ring, selection=Selection(cells=select)),
            spec=SpecConfig(drafts=drafts),
            vram_budget_bytes=budget * MIB,
        )
        session = create_session(model, config, prompt_cells=cells, max_new=32, environ={})
        session.prefill(ids)
        session.generate(SamplingParams(max_new=32, ignore_eos=True))
        assert sum(session.ledger.values()) <= budget * MIB
        session.close()
    assert torch.cuda.max_memory_reserved() - start <= budget * MIB
