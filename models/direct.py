"""Estimate the learned column of a backtest from published percentages alone.

Published rows hold no rounds and too few repeats for a model, so this is the plainest estimator
that carries an error: the mean log ratio per (tier, mode, pool). How far a row strays is told by
three things, each with its own degrees of freedom: rows whose two arms had one ring measure noise
about zero (their root mean square; fewer than three of them, or zeros alone, say nothing), the
scatter of a pool's own rows, and the scatter inside all pools taken together. A bound holds
whichever of them is right, so the widest counts: Student's, one-sided at 95 %, not corrected for
the number of rings looked at.

A ring that reaches past the whole context reserves the context, so rings are told apart by the
pool that they reserve at a tier. A row whose two rings reserve one pool says nothing of a ring;
it is not counted as noise either, as the engine behind it may have told them apart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
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
FEWEST_SAME_RING = 3
"""Rows of one ring in both arms below which their spread is no measure of noise."""
FINEST_LOG_SD = 0.001
"""No published rate is taken to be surer than a tenth of a percent."""
Pool = Callable[[int, int], int]
"""(tier, ring) -> the cells that the ring reserves there."""
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
    """The smallest of the rings that reserve this pool."""
    rows: int
    effect_ratio: float
    lower_ratio: float | None
    """None where too few same-ring rows tell the noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectFit:
    """Every estimate, the noise beneath them and the table that they make."""

    estimates: tuple[DirectEstimate, ...]
    noise_log_sd: float | None
    degrees_of_freedom: int
    """Of the noise: the same-ring rows, whether they suffice or not."""
    one_pool_rows: int
    """Rows of two rings that reserve one pool at their tier; no evidence for either."""
    table: PolicyTable


@dataclass(frozen=True, slots=True)
class _Scatter:
    """One estimate of how far a row strays, as a log standard deviation."""

    log_sd: float
    freedom: int

    def reach(self, rows: int) -> float:
        """Return how far below the mean of so many rows the bound lies."""
        sd = max(self.log_sd, FINEST_LOG_SD)
        return float(stats.t.ppf(CONFIDENCE, self.freedom)) * sd / math.sqrt(rows)


def fit_direct(
    rows: Sequence[Row], default_ring_cells: int, tiers_cells: Iterable[int], pool: Pool
) -> DirectFit:
    """Return the direct estimate from `rows`, as a table of `tiers_cells` over the default ring.

    Rows of another control pool say nothing about a gain over the default ring and are not used
    as evidence; as measures of noise, same-ring rows count whatever their ring.
    """
    noise = [row.log_ratio for row in rows if row.same_ring and row.log_ratio is not None]
    groups: dict[tuple[int, Mode, int], list[Row]] = defaultdict(list)
    one_pool = 0
    for row in rows:
        control, arm, default = (
            pool(row.tier_cells, ring)
            for ring in (row.ring_control_cells, row.ring_arm_cells, default_ring_cells)
        )
        if row.log_ratio is None or row.same_ring:
            continue
        if control == arm:
            one_pool += 1
        elif control == default:
            groups[row.tier_cells, row.mode, arm].append(row)
    samples = {key: np.array([row.log_ratio for row in group]) for key, group in groups.items()}
    same_ring = _same_ring(noise)
    shared = _inside(list(samples.values()))
    estimates = []
    for (tier, mode, reserved), group in sorted(groups.items()):
        sample = samples[tier, mode, reserved]
        lower = None
        if same_ring is not None:
            known = [one for one in (same_ring, shared, _inside([sample])) if one is not None]
            reach = max(one.reach(len(sample)) for one in known)
            lower = float(np.expm1(sample.mean() - reach))
        estimates.append(
            DirectEstimate(
                tier_cells=tier,
                mode=mode,
                ring_cells=min(row.ring_arm_cells for row in group),
                rows=len(group),
                effect_ratio=float(np.expm1(sample.mean())),
                lower_ratio=lower,
            )
        )
    return DirectFit(
        estimates=tuple(estimates),
        noise_log_sd=None if same_ring is None else same_ring.log_sd,
        degrees_of_freedom=len(noise),
        one_pool_rows=one_pool,
        table=_table(estimates, tiers_cells, default_ring_cells),
    )


def _same_ring(noise: Sequence[float]) -> _Scatter | None:
    """Return what same-ring rows say of the noise; None where they are too few, or all zero."""
    if len(noise) < FEWEST_SAME_RING or not any(noise):
        return None
    return _Scatter(float(np.sqrt(np.mean(np.square(noise)))), len(noise))


def _inside(samples: Sequence[np.ndarray]) -> _Scatter | None:
    """Return the scatter of rows about the means of their own pools; None where no pool has two."""
    freedom = sum(len(sample) - 1 for sample in samples)
    if not freedom:
        return None
    squares = sum(float(np.square(sample - sample.mean()).sum()) for sample in samples)
    return _Scatter(math.sqrt(squares / freedom), freedom)


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
