"""Derive the tables of the campaigns from their trials again, and print what changed.

    python experiments/h200-campaign/rederive.py

Each is held against the table beside its trials and against the one that ships, entry by entry;
failed pairs are listed with the ring that they are charged to.
"""

from __future__ import annotations

from pathlib import Path

from strata.models.frame import pair_table
from strata.models.guards import charged
from strata.policy.table import PolicyTable
from strata.policy.table_file import load_table
from strata.tuner.conclude import conclude
from strata.tuner.evidence import evidence_of
from strata.tuner.store import MemoryStore, import_study

HERE = Path(__file__).parent
SHIPPED = HERE.parents[1] / "data" / "policies"
STUDIES = {
    "own": None,
    "shared": None,
    "own-2": "h200-own-72mib.json",
    "shared-2": "h200-shared-64mib.json",
}


def main() -> None:
    for name, shipped in STUDIES.items():
        store = MemoryStore()
        study, _, _ = import_study(store, HERE / name / "trials")
        pairs = pair_table(evidence_of(store, study))
        failed, mine = pairs[~pairs["kind"].isin(["ok"])], charged(pairs)
        by_ring = mine.groupby(["tier_cells", "mode", "ring_cells", "kind"]).size()
        print(f"{study.name}: {len(failed)} of {len(pairs)} pairs failed, {len(mine)} are charged")
        for (tier, mode, ring, kind), count in by_ring.items():
            print(f"  {tier} {mode}: ring {ring}, {count} pairs, {kind}")
        table = conclude(store, study)
        paths = [HERE / name / "ring-policy.json", *([SHIPPED / shipped] if shipped else [])]
        for path in paths:
            print(f"  {path.relative_to(HERE.parents[1])}: {changes(load_table(path), table)}")


def changes(old: PolicyTable, new: PolicyTable) -> str:
    """Return which entries of two tables differ."""
    pairs = zip(old.entries, new.entries, strict=True)
    differing = [f"{a.tier_cells} {a.mode}" for a, b in pairs if a != b]
    if differing:
        return f"changed at {', '.join(differing)}"
    return f"all {len(new.entries)} entries are the same"


if __name__ == "__main__":
    main()
