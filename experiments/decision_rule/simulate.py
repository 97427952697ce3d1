"""Print how often the decision rule is right on made-up studies whose truth is known.

    python experiments/decision_rule/simulate.py [--studies 200]

The last line is one JSON document with every rate.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from strata.models.decide import Rule
from strata.models.simulate import Design, adoption_rate, constant_round, planted

QUICK = Design(rings_cells=(256, 1_024, 8_192), search_passages=3)
CAMPAIGN = Design(
    tiers_cells=(1_024, 8_192, 32_768, 65_536, 131_072),
    rings_cells=(4_096, 8_192, 16_384, 24_576, 32_768, 49_152, 65_536),
    default_ring_cells=32_768,
    search_passages=4,
    fresh_passages=12,
)
MODE = "on"


def main() -> None:
    """Simulate every case and print its rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=200)
    seeds = range(parser.parse_args().studies)
    rule = Rule(margin_ratio=0.01)
    rates: dict[str, float] = {}
    for plan, design in (("quick", QUICK), ("campaign", CAMPAIGN)):
        tier, ring = (4_096, 8_192) if plan == "quick" else (131_072, 49_152)
        none = adoption_rate(design, Rule(margin_ratio=0.0), constant_round, seeds)
        rates[f"{plan}: a ring adopted, nothing planted, margin 0"] = none
        for noise in (0.005, 0.01, 0.02):
            noisy = replace(design, passage_sd=noise, run_sd=noise)
            tag = f"{plan}, noise {noise:.1%}"
            for gain in (0.03, 0.10):
                round_s = planted(gain, tier_cells=tier, mode=MODE, ring_cells=ring)
                found = adoption_rate(
                    noisy, rule, round_s, seeds, tier_cells=tier, mode=MODE, ring_cells=ring
                )
                rates[f"{tag}: a planted {gain:.0%} gain found, margin 1 %"] = found
    for name, rate in rates.items():
        print(f"{rate:6.1%}  {name}")
    print(json.dumps({"studies": len(seeds), "rates": rates}))


if __name__ == "__main__":
    main()
