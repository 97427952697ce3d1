"""`strata model predict --device-profile`: what a device would do, from its profile alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.arena import tensor_bytes
from strata.cli import model_view as view
from strata.cli.console import needs_extra, note, say, show_table
from strata.cli.json_file import write_json
from strata.cli.model_chosen import Chosen
from strata.cli.model_grid import Scenario, lay_grid
from strata.cli.model_ledger import Ask, Ledger, checkpoint_folder
from strata.config import (
    AUTO_WINDOW,
    DEFAULT_MAX_NEW,
    DEFAULT_RING_CELLS,
    PAGE_CELLS,
    Selection,
)
from strata.errors import BudgetError, UsageError
from strata.policy import Fingerprint
from strata.units import format_bytes, parse_cells

if TYPE_CHECKING:
    import pandas as pd

    from strata.models.cost_model import RingCostModel
    from strata.models.device_profile import DeviceProfile
    from strata.models.model_file import ModelFacts
    from strata.models.whatif import Geometry, Workload

SCHEMA = "strata.ring-estimate/1"
DEPTHS = (8_192, 32_768, 131_072)
VERDICT = "no evidence"


def estimate(
    name: str,
    chosen: Chosen,
    *,
    known: tuple[RingCostModel, ModelFacts] | None,
    select: str | None,
    window: str | None,
    accepted: float | None,
    json: str | None,
) -> None:
    """Print the estimated table of the device `name`, and its JSON to where `json` says.

    With `known`, misses and acceptance are those of a fitted model, which must be of the same
    checkpoint. Raises UsageError for a profile or a switch that cannot be.
    """
    with needs_extra("strata model predict"):
        from strata.models import whatif
        from strata.models.device_profile import load_profile
    profile = load_profile(name)
    folder = checkpoint_folder("bundled" if chosen.checkpoint is None else str(chosen.checkpoint))
    ledger = Ledger.open(folder, profile.kv_dtype)
    scenario = _scenario(profile, ledger, chosen, known, select, window)
    depths = chosen.depths or _depths(ledger, scenario)
    drafts = chosen.drafts or ((0, 1) if ledger.model.has_mtp else (0,))
    grid = lay_grid(scenario, ledger, depths=depths, drafts=drafts, rings=chosen.rings)
    if (grid["obstacle"] != "").all():
        raise BudgetError(str(grid["obstacle"].iloc[0]))
    geometry = geometry_of(ledger, scenario.ask(depths[0], 0))
    workload = _workload(geometry, known, max(drafts), accepted)
    found = grid.join(whatif.estimate(grid, profile, geometry, workload))
    found.loc[found["obstacle"] != "", ["round_s", "tokens_per_round", "tok_s"]] = np.nan
    entries = estimated_entries(found)
    if json is not None:
        write_json(json, _document(profile, scenario, entries, found))
        if json == "-":
            return
    c = scenario.conditions
    say(
        f"ESTIMATE for {profile.name}, model {c.model_hash[:12]}, selection {c.select}, "
        f"{format_bytes(scenario.budget_bytes or 0)} of device memory: nothing was measured"
    )
    shown = found if chosen.rings else found[found["obstacle"] != ""]
    if len(shown):
        show_table(view.estimates_table(shown))
    show_table(view.estimated_entries_table(entries))
    note("an estimate is no evidence, and no session obeys it: measure with strata tune")


def estimated_entries(found: pd.DataFrame) -> list[dict[str, Any]]:
    """Return one entry for each (depth, drafts): the ring that ought to be fastest.

    Every one says ``no evidence`` and that it is predicted.
    """
    entries = []
    fits = found[found["obstacle"] == ""]
    for (depth, drafts), group in fits.groupby(["depth_cells", "spec"], sort=True):
        best = group.loc[view.fastest(group)]
        default = group[group["ring_cells"] == group["default_ring_cells"]].iloc[0]
        entries.append(
            {
                "tier_cells": int(depth),
                "mode": "on" if drafts else "off",
                "drafts": int(drafts),
                "ring_cells": int(best["ring_cells"]),
                "default_ring_cells": int(default["ring_cells"]),
                "expert_slots": int(best["expert_slots"]),
                "rounds_per_s": float(1 / best["round_s"]),
                "tok_s": float(best["tok_s"]),
                "effect": float(default["round_s"] / best["round_s"] - 1),
                "verdict": VERDICT,
                "predicted": True,
            }
        )
    return entries


def geometry_of(ledger: Ledger, ask: Ask) -> Geometry:
    """Return the sizes that a round of the checkpoint moves."""
    from strata.models.whatif import Geometry

    model = ledger.model
    c, w, size = model.config, model.weights, model.dtype.itemsize
    g = ledger.demand(ask).geometry(ask.minimum_cells)
    drafter = 0
    if w.mtp is not None:
        heads = (c.heads + 2 * c.kv_heads + c.heads) * c.head_dim * c.hidden
        drafter = (2 * c.hidden**2 + heads + 3 * c.mtp_dense_width * c.hidden) * size
    table = w.embedding.numel() * size
    return Geometry(
        layers=c.layers,
        page_cells=ask.page_cells,
        cell_bytes=2 * c.kv_heads * c.head_dim * size,
        bounds_bytes=2 * c.kv_heads * c.head_dim * 4 if g.select_pages else 0,
        resident_bytes=w.device_bytes - drafter - (0 if c.tied else table),
        expert_bytes=tensor_bytes(tuple(w.experts.shape[1:]), model.dtype),
        experts_per_token=c.experts_per_token,
        num_experts=c.layers * c.experts,
        draft_bytes=drafter + table,
    )


def _scenario(
    profile: DeviceProfile,
    ledger: Ledger,
    chosen: Chosen,
    known: tuple[RingCostModel, ModelFacts] | None,
    select: str | None,
    window: str | None,
) -> Scenario:
    measured = None if known is None else known[1].fingerprint
    if measured is not None and measured.model_hash != ledger.model.model_hash:
        raise UsageError(
            f"--model: {ledger.model.folder} is model {ledger.model.model_hash[:12]}, and the "
            f"study measured {measured.model_hash[:12]}; its misses are no guide to another's"
        )
    selection = select or ("0" if measured is None else measured.select)
    width: int | str = AUTO_WINDOW.word
    if window is None and measured is not None:
        width = measured.mtp_window
    elif window not in (None, "auto"):
        width = parse_cells(window, name="--mtp-window")
    return Scenario(
        conditions=Fingerprint(
            device=profile.name,
            model_hash=ledger.model.model_hash,
            kv_dtype=profile.kv_dtype,
            page_cells=PAGE_CELLS if measured is None else measured.page_cells,
            select=str(Selection.parse(selection)),
            mtp_window=width,
        ),
        max_new=chosen.max_new or DEFAULT_MAX_NEW,
        default_ring_cells=DEFAULT_RING_CELLS[profile.kind],
        budget_bytes=chosen.budget_bytes or profile.vram_bytes,
    )


def _depths(ledger: Ledger, scenario: Scenario) -> list[int]:
    """Return the depths of a table where none were given: those that the model can run."""
    longest = ledger.model.config.max_positions - scenario.max_new
    return [depth for depth in DEPTHS if depth <= longest] or [longest]


def _workload(
    geometry: Geometry,
    known: tuple[RingCostModel, ModelFacts] | None,
    most_drafts: int,
    accepted: float | None,
) -> Workload:
    from strata.models.whatif import ACCEPTED, Workload

    share = ACCEPTED if accepted is None else accepted
    if not 0 < share < 1:
        raise UsageError(f"--accepted: {share} is not between 0 and 1")
    usual = Workload.usual(geometry, max_rows=1 + most_drafts, accepted=share)
    if known is None:
        return usual
    cost, _ = known
    acceptance = cost.acceptance_ if accepted is None else usual.acceptance
    return Workload(features=cost.round_time_.features, acceptance=acceptance)


def _document(
    profile: DeviceProfile, scenario: Scenario, entries: list[dict[str, Any]], found: pd.DataFrame
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "estimate": True,
        "profile": asdict(profile),
        "conditions": asdict(scenario.conditions) | {"vram_budget_bytes": scenario.budget_bytes},
        "entries": entries,
        "sessions": view.records(found),
    }
