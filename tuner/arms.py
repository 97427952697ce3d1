"""From a plan to what is run: the grid of arms, and for each arm its pairs of trials.

An *arm* is a (tier, mode, ring). It is measured against the default ring on each passage, back
to back in one process: that is a *pair*, four runs in the order default, arm, arm, default.
The arm that *is* the default ring has one pair a (tier, mode), default against default: it
shows what the measurement makes of no difference at all.

A plan may ask for pairs of other purposes on its search passages. ``prefill`` times the prompt and
the first token of both rings. ``break-even`` runs one ring without the drafter (in the place of the
default) and with a drafter whose drafts are made, verified and all refused (in the place of the
arm): both give one token a round, so the ratio of their rounds/s is what drafting costs, free of
acceptance.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from strata.config import Selection
from strata.errors import UsageError
from strata.policy.request import minimum_ring_cells
from strata.tuner.plan import WARM_UP_TOKENS, Mode, Plan, Purpose
from strata.units import parse_cells

Split = Literal["search", "fresh"]

Side = Literal["default", "arm"]
"""The default ring's session of a pair, or that of the ring it is held against."""

ORDER: tuple[Side, ...] = ("default", "arm", "arm", "default")
"""ABBA: a drift that is linear in time falls equally on both arms."""

TRIAL_ID_DIGITS = 32
DECODE: Purpose = "decode"


def digest(value: object) -> str:
    """Return the SHA-256 of a JSON value's canonical text."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Arm:
    """One point of the grid."""

    tier_cells: int
    mode: Mode
    ring_cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSpec:
    """All that a trial process needs to run one pair, and all that can change its numbers."""

    study: str
    split: Split
    tier_cells: int
    depth_cells: int
    passage: str
    mode: Mode
    spec: int
    mtp_window_cells: int | None
    """None is what the engine reads by itself (``auto``)."""
    default_ring_cells: int
    arm_ring_cells: int
    select: str
    page_cells: int
    victims: Literal["clock", "lrfu"]
    vram_budget_bytes: int | None
    context_cells: int
    max_new: int
    warm_up: int
    min_decode_s: float | None
    """None leaves it to the device."""
    purpose: Purpose = DECODE
    retry: int = 0
    """Which repeat of a planned pair that failed it is; 0 is the planned pair itself."""

    @property
    def pair_id(self) -> str:
        """Return the hash of everything above."""
        return digest(self._identity())[:TRIAL_ID_DIGITS]

    @property
    def planned_id(self) -> str:
        """Return the id of the planned pair, whichever try of it this is."""
        return replace(self, retry=0).pair_id

    def trial_id(self, position: int) -> str:
        """Return the hash of the pair and of the run's place in it."""
        return digest([self._identity(), position, ORDER[position]])[:TRIAL_ID_DIGITS]

    def _identity(self) -> dict[str, Any]:
        """Return what the ids are made of; what came later than they did has no part in most."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.purpose == DECODE:
            del facts["purpose"]
        if not self.retry:
            del facts["retry"]
        return facts

    def side(self, position: int) -> PairSpec:
        """Return the pair as the session of one run sees it: in a break-even one side drafts."""
        if self.purpose == "break-even" and ORDER[position] == "default":
            return replace(self, mode="off", spec=0, mtp_window_cells=None)
        return self

    def ring_cells(self, position: int) -> int:
        """Return the ring of the run at `position`."""
        default = ORDER[position] == "default"
        return self.default_ring_cells if default else self.arm_ring_cells

    def pool_cells(self, position: int) -> int:
        """Return the cells that run reserves: its ring, or the whole context where less."""
        return min(self.ring_cells(position), self.context_cells)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> PairSpec:
        """Rebuild a spec from `to_json`."""
        return cls(**value)


@dataclass(frozen=True, slots=True)
class ArmGrid:
    """A plan laid over a device's default ring."""

    plan: Plan
    default_ring_cells: int

    def rings(self, tier_cells: int) -> tuple[int, ...]:
        """Return the rings that differ at a tier, rising; the default is always among them.

        Rings of the same pool are one ring, under the default's name where it is one of them.
        """
        pools = {min(self.default_ring_cells, self._context(tier_cells)): self.default_ring_cells}
        for ring in self._wanted(tier_cells):
            pools.setdefault(min(ring, self._context(tier_cells)), ring)
        return tuple(sorted(pools.values()))

    def arms(self) -> tuple[Arm, ...]:
        """Return every arm of the grid, tier by tier."""
        grid = self.plan.grid
        return tuple(
            Arm(tier_cells=tier, mode=mode, ring_cells=ring)
            for tier in grid.tiers
            for mode in grid.modes
            for ring in self.rings(tier)
        )

    def arm(self, tier_cells: int, mode: Mode, ring_cells: int) -> Arm:
        """Return the arm that a ring is at a tier: the one of the same pool, else the nearest."""
        context = self._context(tier_cells)
        ring = min(
            self.rings(tier_cells),
            key=lambda one: abs(min(one, context) - min(ring_cells, context)),
        )
        return Arm(tier_cells=tier_cells, mode=mode, ring_cells=ring)

    def pairs(self, arm: Arm, *, study: str) -> Iterator[PairSpec]:
        """Yield the pairs of one arm, search passages first, then those of other purposes.

        Where only the chosen ring is confirmed, those that confirm it are `confirming`.
        """
        passages = self.plan.passages
        search: list[tuple[Split, int]] = [("search", seed) for seed in passages.search]
        fresh: list[tuple[Split, int]] = [("fresh", seed) for seed in passages.fresh]
        samples = search if passages.confirm == "chosen" else search + fresh
        if arm.ring_cells == self.default_ring_cells:
            samples = samples[:1]
        for split, seed in samples:
            yield self._pair(arm, split, seed, study)
        for purpose in self.plan.measure.purposes:
            if purpose == DECODE or (purpose == "break-even" and arm.mode == "off"):
                continue
            for split, seed in search or fresh[:1]:
                pair = self._pair(arm, split, seed, study)
                one_ring = purpose == "break-even"
                default = arm.ring_cells if one_ring else self.default_ring_cells
                yield replace(pair, purpose=purpose, default_ring_cells=default)

    def _pair(self, arm: Arm, split: Split, seed: int, study: str) -> PairSpec:
        session, decode_s = self.plan.session, self.plan.measure.min_decode_s
        window = None if session.mtp_window == "auto" or arm.mode == "off" else session.mtp_window
        return PairSpec(
            study=study,
            split=split,
            tier_cells=arm.tier_cells,
            depth_cells=arm.tier_cells,
            passage=f"{arm.tier_cells}:{seed}",
            mode=arm.mode,
            spec=session.drafts if arm.mode == "on" else 0,
            mtp_window_cells=window,
            default_ring_cells=self.default_ring_cells,
            arm_ring_cells=arm.ring_cells,
            select=session.select,
            page_cells=session.page,
            victims=session.victims,
            vram_budget_bytes=session.vram_budget,
            context_cells=self._context(arm.tier_cells),
            max_new=self.plan.measure.max_new,
            warm_up=WARM_UP_TOKENS,
            min_decode_s=None if decode_s == "auto" else decode_s,
        )

    def confirming(self, arm: Arm, *, study: str) -> Iterator[PairSpec]:
        """Yield the pairs that are run for an arm once it was chosen, none where all rings are."""
        if self.plan.passages.confirm == "chosen" and arm.ring_cells != self.default_ring_cells:
            for seed in self.plan.passages.fresh:
                yield self._pair(arm, "fresh", seed, study)

    def every_pair(self, *, study: str) -> Iterator[PairSpec]:
        """Yield every pair that the plan may come to, arm by arm."""
        for arm in self.arms():
            yield from self.pairs(arm, study=study)
            yield from self.confirming(arm, study=study)

    def sha256(self) -> str:
        """Return the hash of the search space: its arms and the default they are held against."""
        arms = [[arm.tier_cells, arm.mode, arm.ring_cells] for arm in self.arms()]
        return digest({"arms": arms, "default_ring_cells": self.default_ring_cells})

    def _context(self, tier_cells: int) -> int:
        return self.plan.context_cells(tier_cells)

    def _wanted(self, tier_cells: int) -> tuple[int, ...]:
        rings = self.plan.grid.rings
        if rings == "auto":
            return self._auto(tier_cells)
        if not isinstance(rings, dict):
            return rings
        named = {parse_cells(name, name="rings"): value for name, value in rings.items()}
        return named[tier_cells]

    def _auto(self, tier_cells: int) -> tuple[int, ...]:
        """Return at most two rings to hold against the default, powers of two in whole pages.

        Where the default holds the whole context, a half and a quarter of the context; else a
        quarter of the default, and what holds everything.
        """
        page, need = self.plan.session.page, self._context(tier_cells)
        selection = Selection.parse(self.plan.session.select)
        minimum = minimum_ring_cells(selection, need_cells=need, page_cells=page)
        if self.default_ring_cells >= need:
            wanted = _power_of_two(need // 4), _power_of_two(need // 2)
        else:
            wanted = self.default_ring_cells // 4, 2 * _power_of_two(need - 1)
        return tuple(max(-(-ring // page) * page, minimum) for ring in wanted)


def _power_of_two(cells: int) -> int:
    """Return the largest power of two that is not above `cells`."""
    return 1 << max(0, cells.bit_length() - 1)


def lay_grid(
    plan: Plan, *, device_default_cells: int, max_positions: int | None, has_mtp: bool = True
) -> ArmGrid:
    """Return the grid of a plan on a device; raise UsageError where the model cannot run it."""
    if "on" in plan.grid.modes and not has_mtp:
        raise UsageError(
            f"plan {plan.name}: the model has no MTP layer to draft with; --modes off measures "
            "without the drafter"
        )
    longest = plan.grid.tiers[-1] + plan.measure.max_new
    if max_positions is not None and longest > max_positions:
        raise UsageError(
            f"plan {plan.name}: tier {plan.grid.tiers[-1]} with {plan.measure.max_new} new tokens "
            f"needs {longest} positions and the model has {max_positions}; leave the tier out"
        )
    asked = plan.grid.default_ring
    return ArmGrid(plan, device_default_cells if asked == "auto" else asked)
