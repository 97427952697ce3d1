"""Estimate the learned column of a backtest from published percentages alone.

Published rows hold no rounds and too few repeats for a model, so this is the plainest estimator
that carries an error: the mean log ratio per (tier, mode, ring), with one noise figure for all
of them. Rows whose two arms had the same ring measure nothing but noise about zero, so its
standard deviation is their root mean square and its degrees of freedom their number; the bound
is Student's, one-sided at 95 %, not corrected for the number of rings looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from strata import __version__
from strata.config import PAGE_CELLS
from strata.models.backtest_rows import Row
from strata.policy.fingerprint import Fingerprint, Mode
from strata.policy.table import Entry, PolicyTable
from strata.policy.tiers import make_tiers

CONFIDENCE = 0.95
PUBLISHED = Fingerprint(
    device="published rows",
    model_hash="not published",
    kv_dtype="bfloat16",
    page_cells=PAGE_CELLS,
)
"""Published rows name no conditions, so session and table of a backtest share these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectEstimate:
    """The estimate for one ring at one (tier, mode), as ratios minus one."""

    tier_cells: int
    mode: Mode
    ring_cells: int
    rows: int
    effect_ratio: float
    lower_ratio: float | None
    """None where no same-ring row tells the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectFit:
    """Every estimate, the noise beneath them and the table that they make."""

    estimates: tuple[DirectEstimate, ...]
    noise_log_sd: float | None
    degrees_of_freedom: int
    table: PolicyTable


def fit_direct(
    rows: Sequence[Row], default_ring_cells: int, tiers_cells: Iterable[int]
) -> DirectFit:
    """Return the direct estimate from `rows`, as a table of `tiers_cells` over the default ring.

    Rows of another control ring say nothing about a gain over the default ring and are not used
    as evidence; as measures of noise, same-ring rows count whatever their ring.
    """
    noise = [row.log_ratio for row in rows if row.same_ring and row.log_ratio is not None]
    sd = float(np.sqrt(np.mean(np.square(noise)))) if noise else None
    groups: dict[tuple[int, Mode, int], list[float]] = defaultdict(list)
    for row in rows:
        comparable = row.ring_control_cells == default_ring_cells and not row.same_ring
        if comparable and row.log_ratio is not None:
            groups[row.tier_cells, row.mode, row.ring_arm_cells].append(row.log_ratio)
    estimates = tuple(
        DirectEstimate(
            tier_cells=tier,
            mode=mode,
            ring_cells=ring,
            rows=len(group),
            effect_ratio=float(np.expm1(np.mean(group))),
            lower_ratio=_lower_ratio(group, sd, len(noise)),
        )
        for (tier, mode, ring), group in sorted(groups.items())
    )
    table = _table(estimates, tiers_cells, default_ring_cells)
    return DirectFit(
        estimates=estimates, noise_log_sd=sd, degrees_of_freedom=len(noise), table=table
    )


def _lower_ratio(group: Sequence[float], sd: float | None, freedom: int) -> float | None:
    if sd is None:
        return None
    reach = float(stats.t.ppf(CONFIDENCE, freedom)) * sd / np.sqrt(len(group))
    return float(np.expm1(np.mean(group) - reach))


def _table(
    estimates: Sequence[DirectEstimate], tiers_cells: Iterable[int], default_ring_cells: int
) -> PolicyTable:
    """Return the table that takes, per (tier, mode), the ring with the highest positive bound."""
    best: dict[tuple[int, Mode], DirectEstimate] = {}
    for estimate in estimates:
        key = (estimate.tier_cells, estimate.mode)
        if estimate.lower_ratio is not None and estimate.lower_ratio > 0:
            rival = best.get(key)
            if rival is None or estimate.lower_ratio > (rival.lower_ratio or 0):
                best[key] = estimate
    return PolicyTable(
        created="1970-01-01T00:00:00Z",
        engine_version=__version__,
        fingerprint=PUBLISHED,
        provenance={"study": "direct estimate"},
        default_ring_cells=default_ring_cells,
        tiers=make_tiers(tiers_cells),
        entries=tuple(
            Entry(
                tier_cells=estimate.tier_cells,
                mode=estimate.mode,
                ring_cells=estimate.ring_cells,
                verdict="better",
                effect_ratio=estimate.effect_ratio,
                lower_ratio=estimate.lower_ratio,
                confidence=CONFIDENCE,
                pairs=estimate.rows,
            )
            for estimate in best.values()
        ),
    )
