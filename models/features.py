"""Turn what a session is asked for into what a round has to do: cells, pages, experts, rows.

Everything here can be computed before a session exists, so the same features serve fitting and
prediction. What geometry cannot say is learned from the engine's own counters
(`strata.models.misses`). The physics of the ring is `min(depth, ring)`: a ring larger than the
context changes nothing. Every feature but the expert misses is monotone: none rises with the pool,
none falls with the depth; expert misses never rise with the slots. With prices that cannot be
negative the time of a round has the same directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd

from strata.config import Selection
from strata.models.frame import effective_window_cells
from strata.models.misses import FallingCurve, PageMisses
from strata.models.physics import Floats

NAMES = (
    "rounds",
    "drafts",
    "read_cells",
    "further_row_cells",
    "selecting",
    "further_row_selecting",
    "scored_cells",
    "further_row_scored_cells",
    "missed_cells",
    "page_fetches",
    "window_cells",
    "missed_experts",
    "expert_fetches",
)
"""What a round is paid for, in the order of the columns."""

FETCH_CELLS, FETCH_EXPERTS = 96.0, 6.0
"""A fetch has a latency of its own: the first miss of a layer costs more than the next. So many
misses a round, one a layer of the bundled model, are where most layers pay it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The learned curves behind the features; made by `learn`, then never changed."""

    page_misses: PageMisses | None
    """None where the counters say nothing: then a cell is as likely resident as any other."""
    dense_scale: float
    """Missed cells of a round, dense reading, over the cells that the pool does not hold."""
    expert_misses: dict[int, FallingCurve]
    """By the rows of a round: a window of rows asks for more experts than one row does. Below the
    fewest slots that rounds of some rows saw, they miss what others saw there, times the rows."""
    tells_selecting: bool = True
    """Whether some trials selected and some did not. Else what selecting costs is part of a round,
    and a price of its own would be zero, or everything, by chance."""

    @classmethod
    def learn(cls, trials: pd.DataFrame) -> Features:
        """Fit the curves to the counters of finished trials."""
        missed = _numbers(trials, "kv_misses") * _numbers(trials, "page_cells")
        missed /= _numbers(trials, "rounds")  # cells a round, all layers
        counted = np.isfinite(missed) & (_numbers(trials, "kv_lookups") != 0)
        rows, selecting = num_rows(trials), scored_cells(trials) > 0
        slots = _numbers(trials, "expert_slots")
        per_round = _numbers(trials, "expert_misses") / _numbers(trials, "rounds")
        experts = {
            int(count): FallingCurve.fit(slots[rows == count], per_round[rows == count])
            for count in np.unique(rows)
        }
        return cls(
            page_misses=_learn_pages(trials[counted], missed[counted]),
            dense_scale=_learn_dense(trials[counted], missed[counted]),
            expert_misses={count: _extended(count, experts) for count in experts},
            tells_selecting=bool(selecting.any() and not selecting.all()),
        )

    def matrix(self, trials: pd.DataFrame, tokens_per_round: Floats) -> Floats:
        """Return the features [n, len(NAMES)] of what `trials` ask for; counters are not read.

        `tokens_per_round` [n] is what a round is expected to yield: pages move by the token.
        """
        further = num_rows(trials) - 1
        read, scored = read_cells(trials), scored_cells(trials)
        window = effective_window_cells(trials).to_numpy(dtype=float)
        selecting = (scored > 0) * float(self.tells_selecting)
        pages, experts = self.missed_cells(trials, tokens_per_round), self.missed_experts(trials)
        return np.column_stack(
            [
                np.ones(len(trials)),
                further,
                read,
                further * read,
                selecting,
                further * selecting,
                scored,
                further * scored,
                pages,
                1 - np.exp(-pages / FETCH_CELLS),
                further * window,
                experts,
                1 - np.exp(-experts / FETCH_EXPERTS),
            ]
        )

    def missed_cells(self, trials: pd.DataFrame, tokens_per_round: Floats) -> Floats:
        """Return the cells that a round misses [n], all layers where counters were seen."""
        pool, read, depth = pool_cells(trials), read_cells(trials), depth_cells(trials)
        dense = self.dense_scale * np.maximum(depth - pool, 0)
        if self.page_misses is None:
            selected = read * (1 - np.minimum(1, pool / depth))
        else:
            curve = self.page_misses.cells_a_token(pool=pool, read=read, depth=depth)
            selected = tokens_per_round * curve
        missed: Floats = np.where(read < depth, selected, dense)
        return missed

    def missed_experts(self, trials: pd.DataFrame) -> Floats:
        """Return the expert misses of a round; no slots recorded means that all are resident."""
        slots, rows = _numbers(trials, "expert_slots"), num_rows(trials)
        missed = np.zeros(len(trials))
        for count, curve in self.expert_misses.items():
            here = (rows == count) & np.isfinite(slots)
            missed[here] = curve(slots[here])
        return missed

    def fewest_slots(self, trials: pd.DataFrame) -> Floats:
        """Return the fewest expert slots that rounds like each row's had; NaN with all resident."""
        slots, rows = _numbers(trials, "expert_slots").copy(), num_rows(trials)
        for count, curve in self.expert_misses.items():
            slots[(rows == count) & np.isfinite(slots)] = curve.at[0]
        return slots


def _extended(rows: int, curves: dict[int, FallingCurve]) -> FallingCurve:
    """Return the curve of `rows`, below its fewest slots as the one that saw the fewest goes on."""
    mine = curves[rows]
    donor = min(curves, key=lambda count: curves[count].at[0])
    fewest, theirs = mine.at[0], curves[donor]
    at = [slots for slots in theirs.at if slots < fewest]
    if not at:
        return mine
    start = float(theirs(np.array([fewest]))[0])
    risen = [
        mine.values[0] + (float(value) - start) * rows / donor for value in theirs(np.array(at))
    ]
    return FallingCurve((*at, *mine.at), (*risen, *mine.values))


def _learn_pages(trials: pd.DataFrame, missed: Floats) -> PageMisses | None:
    pool, read, depth = pool_cells(trials), read_cells(trials), depth_cells(trials)
    selecting = read < depth
    if not (missed[selecting] > 0).any():
        return None
    a_token = (missed / _numbers(trials, "tokens_per_round"))[selecting]
    return PageMisses.fit(
        a_token, pool=pool[selecting], read=read[selecting], depth=depth[selecting]
    )


def _learn_dense(trials: pd.DataFrame, missed: Floats) -> float:
    outside = depth_cells(trials) - pool_cells(trials)
    dense = (read_cells(trials) >= depth_cells(trials)) & (outside > 0)
    return float(np.median(missed[dense] / outside[dense])) if dense.any() else 1.0


def depth_cells(trials: pd.DataFrame) -> Floats:
    """Return the mean depth while decoding: the prompt and half of the answer."""
    return _numbers(trials, "depth_cells") + _numbers(trials, "max_new") / 2


def pool_cells(trials: pd.DataFrame) -> Floats:
    """Return the pool of each session: its ring, or the whole context where that is less."""
    return np.fmin(_numbers(trials, "ring_cells"), _numbers(trials, "context_cells"))


def read_cells(trials: pd.DataFrame) -> Floats:
    """Return the cells that one row reads: its selection, or everything."""
    depth = depth_cells(trials)
    selected = np.array(
        [_selected_cells(str(text), d) for text, d in zip(trials["select"], depth, strict=True)]
    )
    read: Floats = np.minimum(selected, depth)
    return read


def scored_cells(trials: pd.DataFrame) -> Floats:
    """Return the cells whose bounds one row scores: all of them where it selects, else none."""
    depth = depth_cells(trials)
    scored: Floats = np.where(read_cells(trials) < depth, depth, 0.0)
    return scored


def num_rows(trials: pd.DataFrame) -> Floats:
    """Return the rows of a round's verify window: the last token and the drafts."""
    drafting = (trials["mode"] == "on").to_numpy()
    rows: Floats = 1 + np.where(drafting, np.nan_to_num(_numbers(trials, "spec")), 0.0)
    return rows


_parsed = cache(Selection.parse)


def _selected_cells(select: str, depth: float) -> float:
    selection = _parsed(select)
    if selection.is_dense:
        return depth
    return selection.cells or depth / selection.depth_divisor


def _numbers(trials: pd.DataFrame, name: str) -> Floats:
    values: Floats = pd.to_numeric(trials[name]).to_numpy(dtype=float, na_value=np.nan)
    return values
