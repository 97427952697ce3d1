"""Ask the engine's own ledger what a session would hold, for a device that need not be here.

The checkpoint is read into host memory in the device's type of numbers; nothing is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from strata.config import DEFAULT_VICTIMS, Selection, Window
from strata.errors import CheckpointError, UsageError
from strata.layout import Demand
from strata.lm import LanguageModel, bundled_model_path
from strata.lm.checkpoint import hash_checkpoint
from strata.lm.layers import Rotary
from strata.lm.model import open_checkpoint
from strata.lm.tokenizer import load_tokenizer
from strata.lm.weights import load_weights
from strata.policy import minimum_ring_cells, need_cells, round_up

DTYPE_DEVICES = {"bfloat16": "cuda", "float32": "cpu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One session that might be: its conversation and the switches that cost memory."""

    depth_cells: int
    max_new: int
    drafts: int
    select: str
    page_cells: int
    window: Window
    budget_bytes: int | None
    context_cells: int | None = None
    """None reserves for its own need alone."""

    @property
    def need_cells(self) -> int:
        """Return prompt + max new + one page, rounded up to a page."""
        return need_cells(
            prompt_cells=self.depth_cells, max_new=self.max_new, page_cells=self.page_cells
        )

    @property
    def max_context_cells(self) -> int:
        """Return the cells that the session may reach."""
        return max(self.context_cells or 0, self.need_cells)

    @property
    def minimum_cells(self) -> int:
        """Return the minimum ring."""
        minimum = minimum_ring_cells(
            Selection.parse(self.select), need_cells=self.need_cells, page_cells=self.page_cells
        )
        return min(minimum, self.whole_cells)

    @property
    def whole_cells(self) -> int:
        """Return the ring that holds everything."""
        return round_up(self.max_context_cells, self.page_cells)

    def pool_cells(self, ring_cells: int) -> int:
        """Return the cells that a ring reserves."""
        return min(ring_cells, self.whole_cells)


class Ledger:
    """Says what fits beside a checkpoint's weights, and how many experts are left room."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    @classmethod
    def open(cls, folder: Path, kv_dtype: str) -> Ledger:
        """Read the checkpoint in `folder`; raise CheckpointError where it is none."""
        return cls(_load(folder, kv_dtype))

    def demand(self, ask: Ask) -> Demand:
        """Return the engine's own account of a session."""
        return Demand(
            model=self.model,
            need=ask.need_cells,
            max_context=ask.max_context_cells,
            page_cells=ask.page_cells,
            selection=Selection.parse(ask.select),
            drafting=ask.drafts > 0,
            rows=1 + ask.drafts,
            window_rule=ask.window,
            victims=DEFAULT_VICTIMS,
            budget_bytes=ask.budget_bytes,
        )

    def expert_slots(self, ask: Ask, ring_cells: int) -> int | None:
        """Return the expert slots beside a ring (all without a budget); None: it does not fit."""
        demand, pool = self.demand(ask), ask.pool_cells(ring_cells)
        if demand.budget_bytes is None:
            return demand.num_experts
        if not demand.fits(pool, demand.fewest_experts):
            return None
        return demand.most_experts(pool)

    def cap_cells(self, ask: Ask) -> int:
        """Return the largest ring beside the fewest expert slots, at most the max context.

        Raises BudgetError where not even the minimum ring fits.
        """
        demand = self.demand(ask)
        demand.check(ask.minimum_cells)
        most = demand.largest_ring(demand.fewest_experts)
        return ask.whole_cells if most is None else min(most, ask.whole_cells)


def candidate_rings(ask: Ask, cap_cells: int, extra: Sequence[int] = ()) -> list[int]:
    """Return rings to choose from: powers of two and their middles from minimum to cap.

    The minimum, the cap and those of `extra` that lie between are among them.
    """
    steps = (base << power for power in range(30) for base in (2, 3))
    wanted = {*(round_up(step, ask.page_cells) for step in steps), *extra}
    between = {ring for ring in wanted if ask.minimum_cells < ring < cap_cells}
    return sorted({ask.minimum_cells, *between, cap_cells})


def checkpoint_folder(name: str) -> Path:
    """Return the folder that ``bundled`` or a path names; raise CheckpointError for none."""
    folder = bundled_model_path() if name == "bundled" else Path(name)
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder; name the checkpoint with --model")
    return folder


class TensorThere(torch.Tensor):
    """Says that it is on a GPU, for the layout to plan with the kernels that would serve there."""

    is_cuda = True


def _load(folder: Path, kv_dtype: str) -> LanguageModel:
    if kv_dtype not in DTYPE_DEVICES:
        raise UsageError(f"K/V in {kv_dtype}: it is one of {', '.join(DTYPE_DEVICES)}")
    (checkpoint, config), host = open_checkpoint(folder), torch.device("cpu")
    dtype, kind = getattr(torch, kv_dtype), DTYPE_DEVICES[kv_dtype]
    weights = load_weights(checkpoint, config, device=host, dtype=dtype)
    if kind == "cuda":
        there = weights.embedding.as_subclass(TensorThere)
        weights = replace(weights, embedding=there)
    return LanguageModel(
        config=config,
        weights=weights,
        tokenizer=load_tokenizer(folder, config),
        device=torch.device(kind),
        dtype=dtype,
        model_hash=hash_checkpoint(folder),
        folder=folder,
        rotary=Rotary(config, host),
    )
