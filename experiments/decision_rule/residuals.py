"""Print how often the decision rule adopts a ring where there is nothing but measured noise.

    python experiments/decision_rule/residuals.py [--studies 1000] [FOLDER...]

Each folder holds a campaign's trials. A ring's log ratio on a document, less the ring's mean at its
tier and mode, is noise with the campaign's own shape and a mean of zero. Documents are drawn from
it with replacement, as many to choose on and to confirm on as the plan has, and the rule decides
with a margin of zero. *Whole*: a document brings its noise at every tier, mode and ring. *Apart*:
every (tier, mode) draws documents of its own. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from strata.models.bench import Place, document_of
from strata.models.frame import pair_table, passage_means
from strata.models.guards import edge_objection
from strata.models.inference import holm_steps, mean_p_value
from strata.tuner.evidence import evidence_of
from strata.tuner.store import MemoryStore, import_study

CAMPAIGN = Path(__file__).parents[1] / "h200-campaign"
STUDIES = ("own", "shared", "own-2", "shared-2")
ALPHA = 0.05
Noise = dict[Place, pd.DataFrame]
"""By (tier, mode): rows are documents, columns rings."""
Drawn = dict[Place, NDArray[np.int64]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--studies", type=int, default=1000)
    args = parser.parse_args()
    rates: dict[str, dict[str, float]] = {}
    for folder in args.folders or [CAMPAIGN / name / "trials" for name in STUDIES]:
        name, noise, search, fresh = read(folder)
        skew = max(float(abs(stats.skew(table)).max()) for table in noise.values())
        rates[name] = {}
        for how in ("whole", "apart"):
            rng = np.random.default_rng(0)
            hits = sum(
                adopts(noise, draw(noise, search, rng, how), draw(noise, fresh, rng, how))
                for _ in range(args.studies)
            )
            rates[name][how] = hits / args.studies
        low, high = stats.binomtest(
            round(rates[name]["whole"] * args.studies), args.studies
        ).proportion_ci()
        print(
            f"{name}: adopted in {rates[name]['whole']:.1%} [{low:.1%}, {high:.1%}] of the "
            f"studies with documents whole, {rates[name]['apart']:.1%} apart; largest skewness of "
            f"a ring's noise {skew:.1f}",
            flush=True,
        )
    print(json.dumps({"studies": args.studies, "rates": rates}))


def read(folder: Path) -> tuple[str, Noise, int, int]:
    """Return a study's name, its centred log ratios and how many passages it chose and judged on.

    Only documents on which every ring of a (tier, mode) ran are there.
    """
    store = MemoryStore()
    study, _, _ = import_study(store, folder)
    means = passage_means(pair_table(evidence_of(store, study)))
    noise: Noise = {}
    for (tier, mode), group in means.groupby(["tier_cells", "mode"], sort=True):
        named = group.assign(document=group["passage"].map(document_of))
        table = named.pivot_table(index="document", columns="ring_cells", values="log_ratio")
        table = table.dropna().sort_index()
        noise[int(tier), str(mode)] = table - table.mean()
    passages = study.read_plan().passages
    return study.name, noise, len(passages.search), len(passages.fresh)


def draw(noise: Noise, count: int, rng: np.random.Generator, how: str) -> Drawn:
    """Return the documents that a made-up study has at each (tier, mode)."""
    sizes = {place: len(table) for place, table in noise.items()}
    if how == "apart":
        return {place: rng.integers(size, size=count) for place, size in sizes.items()}
    assert len(set(sizes.values())) == 1, "a document has its noise at every tier and mode"
    one = rng.integers(next(iter(sizes.values())), size=count)
    return dict.fromkeys(noise, one)


def adopts(noise: Noise, search: Drawn, fresh: Drawn) -> bool:
    """Return whether the rule adopts a ring: the best on search, Holm on fresh, the edge guard."""
    chosen, p_values = {}, []
    for place, table in noise.items():
        values = table.to_numpy(dtype=float)
        best = int(values[search[place]].mean(axis=0).argmax())
        chosen[place] = int(table.columns[best])
        p_values.append(mean_p_value(values[fresh[place], best], 0.0))
    _, rejected = holm_steps(p_values, ALPHA)
    better = [place for place, out in zip(noise, rejected, strict=True) if out]
    return any(not _loses_at_its_edge(noise, fresh, place, chosen[place]) for place in better)


def _loses_at_its_edge(noise: Noise, fresh: Drawn, place: Place, ring: int) -> bool:
    tier, mode = place
    parts = []
    for (depth, drafter), table in noise.items():
        if drafter == mode:
            drawn = table.iloc[fresh[depth, drafter]].melt(value_name="log_ratio")
            parts.append(drawn.assign(tier_cells=depth, depth_cells=depth))
    means = pd.concat(parts, ignore_index=True)
    return bool(edge_objection(means, tier, ring, margin_ratio=0.0, alpha=ALPHA))


if __name__ == "__main__":
    main()
