"""Ask the engine for every arm of a plan before the first trial, and reserve nothing.

The rules are the engine's own: its switches, its demand, its choice of a ring. A ring that a memory
budget does not hold is no fault of a plan: that is measured as ``out of memory``.
"""

from __future__ import annotations

from dataclasses import replace

from strata.errors import BudgetError, StrataError, UsageError
from strata.lm import LanguageModel
from strata.switches import plan_session
from strata.tuner.arms import ORDER, ArmGrid, PairSpec, lay_grid
from strata.tuner.environment import EngineFacts
from strata.tuner.plan import Plan
from strata.tuner.session_bench import session_config


def rehearse(model: LanguageModel, plan: Plan, facts: EngineFacts) -> None:
    """Raise UsageError for the first arm of a plan that no session can have on this engine."""
    grid = lay_grid(
        plan,
        device_default_cells=facts.default_ring_cells,
        max_positions=facts.max_positions,
        has_mtp=facts.has_mtp,
    )
    for side, ring in _sides(grid):
        try:
            _refuse(model, side, ring, _default_words(plan, grid, ring))
        except BudgetError:
            continue
        except StrataError as error:
            place = f"tier {side.tier_cells}, drafter {side.mode}, ring {ring}"
            raise UsageError(f"plan {plan.name}, {place}: {error}") from None


def _sides(grid: ArmGrid) -> dict[tuple[PairSpec, int], None]:
    """Return each session that the pairs of a grid need, once, whatever its passage."""
    found: dict[tuple[PairSpec, int], None] = {}
    for pair in grid.every_pair(study=""):
        for position in range(len(ORDER) // 2):
            side = replace(pair.side(position), passage="", split="search")
            ring = pair.ring_cells(position)
            found[replace(side, default_ring_cells=ring, arm_ring_cells=ring), ring] = None
    return found


def _refuse(model: LanguageModel, side: PairSpec, ring_cells: int, hint: str) -> None:
    """Raise StrataError where a session refuses its switches or takes another ring."""
    config = session_config(side, ring_cells)
    session = plan_session(
        model, config, prompt_cells=side.depth_cells, max_new=side.max_new, environ={}
    )
    taken = session.decision.ring_cells
    if taken != ring_cells:
        whole_pages = f"a ring is whole pages of {side.page_cells} cells"
        reason = whole_pages if ring_cells % side.page_cells else "; ".join(session.warnings)
        raise StrataError(f"a session takes {taken} cells there ({reason}){hint}")


def _default_words(plan: Plan, grid: ArmGrid, ring_cells: int) -> str:
    """Return what to do about the device's default ring, where that is at fault."""
    if plan.grid.default_ring != "auto" or ring_cells != grid.default_ring_cells:
        return ""
    return "; it is the device's default, and grid.default_ring names another"
