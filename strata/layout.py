"""What a session's device memory will hold, in bytes, before any of it is reserved.

One function says what each tensor takes; the arena is carved by the same shapes, so a plan that
fits is a session that fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from strata.arena import block_bytes, outside_bytes, tensor_bytes
from strata.config import DEFAULT_PREFETCH, Prefetch, Selection, Victims, Window
from strata.draft.ring import ring_shape
from strata.errors import BudgetError
from strata.kernels import device
from strata.kv.geometry import KvGeometry
from strata.lm.model import LanguageModel
from strata.policy import round_up
from strata.prompt import FREE_ROOM_BYTES, PromptPlan, PromptShape, serves_prompts
from strata.round_buffers import Spec, ahead, round_buffers
from strata.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a session must hold whatever its ring: the model, its context, its switches."""

    model: LanguageModel
    need: int
    max_context: int
    page_cells: int
    selection: Selection
    drafting: bool
    rows: int
    """Rows of a round at most."""
    window_rule: Window
    victims: Victims
    budget_bytes: int | None
    prefetch: Prefetch = DEFAULT_PREFETCH

    @property
    def num_experts(self) -> int:
        """Return the routed experts of all layers."""
        return self.model.config.layers * self.model.config.experts

    @property
    def fewest_experts(self) -> int:
        """Return the slots that one row of one layer needs."""
        return self.model.config.experts_per_token

    def window(self, pool_cells: int) -> int:
        """Return the drafter's window in cells for a pool of `pool_cells`."""
        return self.window_rule.reach(pool_cells=pool_cells, max_context=self.max_context)

    def geometry(self, pool_cells: int) -> KvGeometry:
        """Return the K/V geometry of a pool of `pool_cells`, whole pages."""
        c = self.model.config
        return KvGeometry(
            layers=c.layers,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            page_cells=self.page_cells,
            pages=round_up(self.max_context, self.page_cells) // self.page_cells,
            slots=pool_cells // self.page_cells,
            select_pages=self.selection.pages(need_cells=self.need, page_cells=self.page_cells),
            dtype=self.model.dtype,
        )

    def arena_bytes(self, pool_cells: int, expert_slots: int | None) -> int:
        """Return the bytes of a session's arena; `expert_slots` None keeps experts with the model.

        A GPU's are whole steps of its driver.
        """
        plan = self.prompt_plan(pool_cells, expert_slots)
        lent = self._lendable_bytes(pool_cells, expert_slots)
        room = max(lent, plan.size_bytes) if plan else lent
        return block_bytes(self._kept_bytes(pool_cells, expert_slots) + room, self.model.device)

    def round_buffers(self, pool_cells: int, expert_slots: int | None) -> dict[str, Spec]:
        """Return what rounds need on a GPU; rounds of a CPU take what they need as they go."""
        if self.model.device.type != "cuda":
            return {}
        return round_buffers(
            self.model.config,
            self.geometry(pool_cells),
            rows=self.rows,
            victims=self.victims,
            window_cells=self.window(pool_cells) if self.drafting else None,
            expert_slots=expert_slots,
            prefetch=self.prefetch,
        )

    def prefetch_obstacle(self, pool_cells: int, expert_slots: int | None, *, phases: bool) -> str:
        """Return why nothing is fetched ahead, empty where something is or nobody asked for it."""
        if self.prefetch == "none":
            return ""
        if not phases:
            return "rounds run in PyTorch's own products"
        geometry = self.geometry(pool_cells)
        if any(ahead(self.prefetch, self.model.config, geometry, expert_slots)):
            return ""
        if self.prefetch == "experts":
            return "every expert is on the device"
        if self.selection.is_dense:
            return "every page is read"
        return "everything that it could fetch is resident"

    def prompt_plan(self, pool_cells: int, expert_slots: int | None) -> PromptPlan | None:
        """Return how prompts run on the device: the fastest way that the budget holds.

        A prompt borrows the room of ring and slots; where that is too small for the least way,
        the session needs more. None is where no kernel runs prompts.
        """
        model = self.model
        has_kernels = model.device.type == "cuda" or device.has_kernels(model.weights.embedding)
        if not has_kernels or not serves_prompts(model.config, model.dtype):
            return None
        shape = PromptShape(
            config=model.config,
            geometry=self.geometry(pool_cells),
            drafting=self.drafting,
            experts_on_host=expert_slots is not None,
        )
        plans = shape.plans()
        if self.budget_bytes is None:
            fitting = (plan for plan in plans if plan.size_bytes <= FREE_ROOM_BYTES)
            return next(fitting, plans[-1])
        kept = self._kept_bytes(pool_cells, expert_slots)
        sizes = ((plan, block_bytes(kept + plan.size_bytes, model.device)) for plan in plans)
        fitting = (plan for plan, size in sizes if self._model_bytes + size <= self.budget_bytes)
        return next(fitting, plans[-1])

    def _lendable_bytes(self, pool_cells: int, expert_slots: int | None) -> int:
        """Return the bytes of ring and expert slots, which are empty while a prompt runs."""
        g, dtype = self.geometry(pool_cells), self.model.dtype
        total = 0
        if expert_slots is not None:
            total = tensor_bytes((expert_slots, *self.model.weights.experts.shape[1:]), dtype)
        # A ring that holds the whole context takes the prompt's K/V as it comes.
        return total + (0 if g.holds_all else tensor_bytes(g.pool_shape, dtype))

    def _kept_bytes(self, pool_cells: int, expert_slots: int | None) -> int:
        """Return the bytes of everything else."""
        g, dtype = self.geometry(pool_cells), self.model.dtype
        total = tensor_bytes((g.layers, g.pages), torch.int32)
        total += tensor_bytes((g.layers, g.slots), torch.int32)
        if g.holds_all:
            total += tensor_bytes(g.pool_shape, dtype)
        if g.select_pages:
            total += tensor_bytes(g.bounds_shape, torch.float32)
        total += sum(
            tensor_bytes(*spec) for spec in self.round_buffers(pool_cells, expert_slots).values()
        )
        if self.drafting:
            shape = ring_shape(
                self.window(pool_cells), g.pages * g.page_cells, g.kv_heads, g.head_dim
            )
            total += tensor_bytes(shape, dtype)
        if expert_slots is not None:
            total += tensor_bytes((1, len(self.model.weights.experts)), torch.int32)
            total += tensor_bytes((1, expert_slots), torch.int32)
        return total

    @property
    def _model_bytes(self) -> int:
        """Return the bytes of the budget that are no session's to share out."""
        device = self.model.device
        return block_bytes(self.model.weights.device_bytes, device) + outside_bytes(device)

    def fits(self, pool_cells: int, expert_slots: int) -> bool:
        """Return whether the budget holds weights, pool and slots together."""
        assert self.budget_bytes is not None
        return self._model_bytes + self.arena_bytes(pool_cells, expert_slots) <= self.budget_bytes

    def largest_ring(self, expert_slots: int) -> int | None:
        """Return the largest pool beside `expert_slots`, 0 for none; None without a budget."""
        if self.budget_bytes is None:
            return None
        low, high = 0, round_up(self.max_context, self.page_cells) // self.page_cells
        while low < high:
            middle = (low + high + 1) // 2
            if self.fits(middle * self.page_cells, expert_slots):
                low = middle
            else:
                high = middle - 1
        return low * self.page_cells

    def most_experts(self, pool_cells: int) -> int | None:
        """Return the expert slots that the budget leaves beside a pool; None without a budget."""
        if self.budget_bytes is None:
            return None
        low, high = self.fewest_experts, self.num_experts
        while low < high:
            middle = (low + high + 1) // 2
            if self.fits(pool_cells, middle):
                low = middle
            else:
                high = middle - 1
        return low

    def check(self, minimum_cells: int) -> None:
        """Raise BudgetError where not even the minimum ring fits, naming the least that would."""
        minimum_cells = min(minimum_cells, round_up(self.max_context, self.page_cells))
        if self.budget_bytes is None or self.fits(minimum_cells, self.fewest_experts):
            return
        least = self._model_bytes + self.arena_bytes(minimum_cells, self.fewest_experts)
        prompt = self.prompt_plan(minimum_cells, self.fewest_experts)
        room = f", and {format_bytes(prompt.size_bytes)} that a prompt borrows" if prompt else ""
        raise BudgetError(
            f"--vram-budget: {format_bytes(self.budget_bytes)} cannot hold this session; the "
            f"least that can is {math.ceil(least / 1024)}KiB (weights, a ring of "
            f"{minimum_cells} cells and {self.fewest_experts} expert slots{room})"
        )
