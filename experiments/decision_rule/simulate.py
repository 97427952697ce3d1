"""Print how often the decision rule is right on made-up studies whose truth is known.

    python experiments/decision_rule/simulate.py [--studies 200]

The last line is one JSON document with every rate.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from strata.models.decide import Rule
from strata.models.simulate import Design, adoption_rate, constant_round, planted

MODE = "on"
RUN_SD = 0.005
"""What a run differs from its repeat by on the H200, log time."""

MORE_OF_NOISE = 5
"""A rate near 5 % needs more studies: 200 say 7 % or more one time in eight where it is 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A plan's size, its margin, where something is planted, and by how much passages differ."""

    design: Design
    margin_ratio: float
    tier_cells: int
    ring_cells: int
    noises: Sequence[float]


CAMPAIGN = Design(
    tiers_cells=(1_024, 8_192, 32_768, 65_536, 131_072),
    rings_cells=(2_304, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576),
    default_ring_cells=8_192,
    search_passages=4,
    fresh_passages=12,
    run_sd=RUN_SD,
)
CASES = {
    "quick": Case(
        design=Design(rings_cells=(256, 1_024, 8_192), search_passages=3),
        margin_ratio=0.01,
        tier_cells=4_096,
        ring_cells=8_192,
        noises=(0.005, 0.01, 0.02),
    ),
    "campaign": Case(
        design=CAMPAIGN,
        margin_ratio=0.01,
        tier_cells=131_072,
        ring_cells=12_288,
        noises=(0.01, 0.02, 0.03),
    ),
    "campaign 2": Case(
        design=replace(CAMPAIGN, rings_cells=CAMPAIGN.rings_cells[1:], fresh_passages=24),
        margin_ratio=0.0,
        tier_cells=131_072,
        ring_cells=12_288,
        noises=(0.01, 0.02, 0.03, 0.04),
    ),
}
ONE_RING = Design(
    tiers_cells=CAMPAIGN.tiers_cells,
    rings_cells=(49_152,),
    default_ring_cells=32_768,
    search_passages=12,
    run_sd=RUN_SD,
)
"""The original experiment's rule: a larger ring for everyone, or none (plans/seed-rule.toml)."""


def main() -> None:
    """Simulate every case and print its rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=200)
    seeds = range(parser.parse_args().studies)
    many = range(MORE_OF_NOISE * len(seeds))
    rates: dict[str, float] = {}

    def note(name: str, rate: float) -> None:
        rates[name] = rate
        print(f"{rate:6.1%}  {name}", flush=True)

    for plan, case in CASES.items():
        middle = replace(case.design, passage_sd=case.noises[1])
        adopted = adoption_rate(middle, Rule(margin_ratio=0.0), constant_round, many)
        note(f"{plan}: a ring adopted, nothing planted, margin 0", adopted)
        for noise in case.noises:
            design = replace(case.design, passage_sd=noise)
            for gain in (0.03, 0.10):
                note(
                    f"{plan}, noise {noise:.1%}: a planted {gain:.0%} gain found, margin "
                    f"{case.margin_ratio:.0%}",
                    finds(case, design, gain, seeds),
                )
    for noise in (0.01, 0.02):
        for loss in (0.0, -0.03):
            rate = one_ring_adopted(replace(ONE_RING, passage_sd=noise), loss, seeds)
            note(
                f"one ring for everyone, noise {noise:.1%}, gains 5 % but at one tier "
                f"{loss:+.0%}: adopted",
                rate,
            )
    print(json.dumps({"studies": len(seeds), "rates": rates}))


def finds(case: Case, design: Design, gain_ratio: float, seeds: Sequence[int]) -> float:
    """Return the share of studies that adopt the ring in which a gain was planted."""
    place = {"tier_cells": case.tier_cells, "mode": MODE, "ring_cells": case.ring_cells}
    round_s = planted(gain_ratio, tier_cells=case.tier_cells, mode=MODE, ring_cells=case.ring_cells)
    return adoption_rate(design, Rule(margin_ratio=case.margin_ratio), round_s, seeds, **place)


def one_ring_adopted(design: Design, loss_ratio: float, seeds: Sequence[int]) -> float:
    """Return the share of studies that adopt a ring that gains 5 % save at the lowest tier."""
    lowest, ring = design.tiers_cells[0], design.rings_cells[0]

    def round_s(tier: int, mode: str, ring_cells: int) -> float:
        gain = loss_ratio if tier == lowest else 0.05
        return planted(gain, tier_cells=tier, mode=mode, ring_cells=ring)(tier, mode, ring_cells)

    return adoption_rate(design, Rule(margin_ratio=0.01, no_regression=True), round_s, seeds)


if __name__ == "__main__":
    main()
