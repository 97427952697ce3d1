"""Estimate rounds on a device where nothing was measured, from its profile and a geometry.

A round is what the host does around it, its launches, one after another, and the bytes it moves:
weights, the experts of its rows, K/V and key bounds in the device's own memory; missed pages and
missed experts over the bus.
How many are missed belongs to the model and the text and not to the device, so curves measured
elsewhere serve: those of a fitted cost model, or the ones below. Nothing overlaps here. An
estimate is never evidence; `experiments/cost-model/` holds one against a measured device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import logit

from strata.models.acceptance import Acceptance, RateLine
from strata.models.device_profile import DeviceProfile
from strata.models.features import Features, num_rows, read_cells, scored_cells
from strata.models.misses import FallingCurve, PageMisses
from strata.models.physics import Floats

ROUND_LAUNCHES, LAYER_LAUNCHES, DRAFT_LAUNCHES = 4.0, 4.0, 7.0
SELECTION_LAUNCHES, POOL_LAUNCHES = 2.5, 1.0
"""Launches of a captured round: once, of a layer, of a draft; of a layer's selection and of its
pooled experts besides, which are more but shorter and are counted as what they take. By torch's
profiler (`experiments/gpu-decode/profile.py`), but pooled experts: revised after a sweep was seen
(`experiments/cost-model/`)."""

PAGES = PageMisses(scale=0.23, growth=0.20, fall=2.2)
"""Page misses of one layer of the bundled model on held-out text, 8K to 128K, selection 2,048."""
WORKING_SET, EXPERT_FALL, CURVE_POINTS = 0.85, 1.4, 33
"""Expert misses of an accepted token, over the experts it asks for, fall as
(1 - share / 0.85) ** 1.4 with the share of all experts that has a slot; same source."""
ACCEPTED = 0.85
"""Share of the drafts that are accepted where nothing else is known; same source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The sizes of a checkpoint that a round moves."""

    layers: int
    page_cells: int
    cell_bytes: int
    """K and V of one cell in one layer."""
    bounds_bytes: int
    """The key bounds of one page in one layer."""
    resident_bytes: int
    """The weights that every round reads once."""
    expert_bytes: int
    experts_per_token: int
    num_experts: int
    """Of all layers."""
    draft_bytes: int
    """The weights that a draft reads: the drafter's and the head's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a round misses and how many tokens it yields, whatever the device."""

    features: Features
    acceptance: Acceptance

    @classmethod
    def usual(cls, geometry: Geometry, *, max_rows: int, accepted: float = ACCEPTED) -> Workload:
        """Return what the bundled model did, laid over another geometry."""
        place = RateLine(float(logit(accepted)), (0.0, 0.0))
        asked = geometry.layers * geometry.experts_per_token
        share = np.linspace(0, 1, CURVE_POINTS)
        missed = asked * np.maximum(0, 1 - share / WORKING_SET) ** EXPERT_FALL
        slots = tuple(map(float, share * geometry.num_experts))
        curves = {
            rows: FallingCurve(slots, tuple(map(float, missed * _tokens(accepted, rows))))
            for rows in range(1, max_rows + 1)
        }
        pages = PageMisses(
            scale=PAGES.scale * geometry.layers, growth=PAGES.growth, fall=PAGES.fall
        )
        return cls(
            features=Features(
                page_misses=pages, dense_scale=float(geometry.layers), expert_misses=curves
            ),
            acceptance=Acceptance((place,) * max(0, max_rows - 1)),
        )


def estimate(
    asked: pd.DataFrame, profile: DeviceProfile, geometry: Geometry, workload: Workload
) -> pd.DataFrame:
    """Return `round_s`, `tokens_per_round` and `tok_s` for each row (`cost_model.ASKED`)."""
    g, rows = geometry, num_rows(asked)
    tokens = workload.acceptance.tokens_per_round(asked)
    tokens = np.where(np.isnan(tokens), rows, tokens)
    seconds = 1e-6 * (profile.round_us + profile.launch_us * _launches(asked, g))
    seconds += _device_bytes(asked, g) / profile.device_bytes_per_s
    missed = workload.features.missed_cells(asked, tokens) * g.cell_bytes
    missed += workload.features.missed_experts(asked) * g.expert_bytes
    seconds += missed / profile.bus_bytes_per_s
    scanned = g.layers * scored_cells(asked) / g.page_cells
    seconds += 1e-6 * profile.scan_page_us * scanned
    columns = {"round_s": seconds, "tokens_per_round": tokens, "tok_s": tokens / seconds}
    return pd.DataFrame(columns, index=asked.index)


def _launches(asked: pd.DataFrame, g: Geometry) -> Floats:
    selecting, drafts = scored_cells(asked) > 0, num_rows(asked) - 1
    pooled = pd.to_numeric(asked["expert_slots"]).notna().to_numpy()
    layer = LAYER_LAUNCHES + SELECTION_LAUNCHES * selecting + POOL_LAUNCHES * pooled
    launches: Floats = ROUND_LAUNCHES + g.layers * layer + DRAFT_LAUNCHES * drafts
    return launches


def _device_bytes(asked: pd.DataFrame, g: Geometry) -> Floats:
    """Return the bytes that a round reads of the device's own memory."""
    rows, read, scored = num_rows(asked), read_cells(asked), scored_cells(asked)
    window = np.nan_to_num(pd.to_numeric(asked["mtp_window_cells"]).to_numpy(dtype=float))
    experts = np.minimum(g.num_experts, g.layers * rows * g.experts_per_token) * g.expert_bytes
    readers = np.where(scored > 0, rows, 1.0)  # rows that read everything share their tiles
    cells = g.layers * readers * read * g.cell_bytes
    bounds = g.layers * scored / g.page_cells * g.bounds_bytes
    drafts = (rows - 1) * (g.draft_bytes + window * g.cell_bytes)
    total: Floats = g.resident_bytes + experts + cells + bounds + drafts
    return total


def _tokens(accepted: float, rows: int) -> float:
    """Return the tokens of a round of `rows` rows whose drafts are accepted alike."""
    return float(sum(accepted**place for place in range(rows)))
