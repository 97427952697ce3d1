"""Lay out the sessions that a prediction is asked about, each with what the ledger gives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from strata.cli.model_ledger import Ask, Ledger, candidate_rings
from strata.config import Window
from strata.errors import BudgetError
from strata.policy import Fingerprint

TOO_SMALL = "below the minimum ring of {minimum} cells"
TOO_LARGE = "does not fit the memory budget"
LISTED = ("depth_cells", "spec", "ring_cells", "default_ring_cells", "pool_cells", "obstacle")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What holds for every session of a grid."""

    conditions: Fingerprint
    """Its device is not looked at."""
    max_new: int
    default_ring_cells: int
    budget_bytes: int | None

    def ask(self, depth_cells: int, drafts: int) -> Ask:
        """Return one session of the scenario."""
        c = self.conditions
        return Ask(
            depth_cells=depth_cells,
            max_new=self.max_new,
            drafts=drafts,
            select=c.select,
            page_cells=c.page_cells,
            window=Window.of_word(c.mtp_window),
            budget_bytes=self.budget_bytes,
            context_cells=None if c.context == "own" else c.context,
        )


def lay_grid(
    scenario: Scenario,
    ledger: Ledger | None,
    *,
    depths: Sequence[int],
    drafts: Sequence[int],
    rings: Sequence[int],
) -> pd.DataFrame:
    """Return one row for each session: what the cost model reads, and LISTED.

    `rings` empty takes candidates between the minimum and the cap; the default ring is always
    there where it fits. `obstacle` says why a session cannot be, empty where it can. Without a
    ledger there is no budget and every expert is resident. Raises BudgetError where the one
    session that is asked for does not even fit with its minimum ring.
    """
    rows: list[dict[str, object]] = []
    for depth in depths:
        for count in drafts:
            ask = scenario.ask(depth, count)
            try:
                cap = ask.whole_cells if ledger is None else ledger.cap_cells(ask)
            except BudgetError as error:
                if len(depths) * len(drafts) == 1:
                    raise
                least = ask.minimum_cells
                rows.append(_row(ask, least, least, lambda _: None) | {"obstacle": str(error)})
                continue
            default = max(ask.minimum_cells, min(scenario.default_ring_cells, cap))
            chosen = rings or candidate_rings(ask, cap, (default,))
            slots = _slots(ledger, ask)
            rows += [_row(ask, ring, default, slots) for ring in sorted({*chosen, default})]
    return pd.DataFrame(rows)


def _slots(ledger: Ledger | None, ask: Ask) -> Callable[[int], float | None]:
    """Return what gives the expert slots beside a ring: NaN is every expert, None does not fit."""
    if ledger is None:
        return lambda ring_cells: float("nan")
    return lambda ring_cells: ledger.expert_slots(ask, ring_cells)


def _row(
    ask: Ask, ring_cells: int, default_cells: int, slots: Callable[[int], float | None]
) -> dict[str, object]:
    obstacle, left = "", None
    if ring_cells < ask.minimum_cells:
        obstacle = TOO_SMALL.format(minimum=ask.minimum_cells)
    elif (left := slots(ring_cells)) is None:
        obstacle = TOO_LARGE
    pool = ask.pool_cells(ring_cells)
    return {
        "mode": "on" if ask.drafts else "off",
        "spec": ask.drafts,
        "depth_cells": ask.depth_cells,
        "max_new": ask.max_new,
        "context_cells": ask.whole_cells,
        "ring_cells": ring_cells,
        "default_ring_cells": default_cells,
        "pool_cells": pool,
        "page_cells": ask.page_cells,
        "mtp_window_cells": ask.window.reach(pool_cells=pool, max_context=ask.whole_cells),
        "select": ask.select,
        "expert_slots": float("nan") if left is None else left,
        "obstacle": obstacle,
    }
