"""What a session pays for a policy table: loading the file, and consulting the table.

    python experiments/consult/run.py

A table of a whole campaign (12 tiers, both modes, environment and provenance) is written, loaded
and consulted at needs of every tier. Times are of one call, garbage collection left on: by the
clock, which counts other processes on a busy machine too, and of the processor. The last line is
one JSON document.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from strata.policy import (
    Entry,
    Fingerprint,
    PolicyTable,
    RingRequest,
    choose_ring,
    load_table,
    make_tiers,
    save_table,
)

TIERS = tuple(512 << power for power in range(12))
DEFAULT_RING, PAGE, BETTER_RING = 32_768, 16, 49_152
CONDITIONS = Fingerprint(
    device="NVIDIA H200", model_hash="ab" * 32, kv_dtype="bfloat16", page_cells=PAGE, select="2048",
    spec=3, mtp_window=4_096, vram_budget_bytes=64 << 20,
)  # fmt: skip
PROVENANCE = {
    "study": "0" * 16,
    **dict.fromkeys(("plan_sha256", "protocol_sha256", "passages_sha256"), "cd" * 32),
    **dict.fromkeys(("measured_from", "measured_to"), "2026-01-02T03:04:05+00:00"),
}
LIMITS_US = {"load": 10_000.0, "consult": 50.0}
TUNER = {"sklearn", "optuna", "duckdb", "pandas", "torch", "numpy"}


def campaign_table() -> PolicyTable:
    """Return a table that moves the ring at every other entry."""
    entries = []
    for place, (tier, mode) in enumerate((t, m) for t in TIERS for m in ("off", "on")):
        better = place % 2 == 0
        entries.append(
            Entry(
                tier_cells=tier,
                mode="on" if mode == "on" else "off",
                ring_cells=BETTER_RING if better else DEFAULT_RING,
                verdict="better" if better else "equivalent",
                effect_ratio=0.04,
                lower_ratio=0.02,
                upper_ratio=0.06,
                pairs=24,
                passages=12,
            )
        )
    return PolicyTable(
        created="2026-01-02T03:04:05+00:00",
        engine_version="0.1.0",
        fingerprint=CONDITIONS,
        environment={f"fact_{number}": "x" * 40 for number in range(20)},
        provenance=PROVENANCE | {f"decision_{n}": "y" * 80 for n in range(len(entries))},
        default_ring_cells=DEFAULT_RING,
        tiers=make_tiers(TIERS),
        entries=tuple(entries),
    )


def request(need: int, table: PolicyTable) -> RingRequest:
    """Return what a session with the table's own conditions asks."""
    return RingRequest(
        policy="learned",
        need_cells=need,
        max_context_cells=need,
        page_cells=PAGE,
        minimum_cells=2_080,
        default_cells=DEFAULT_RING,
        fits_few_experts_cells=65_536,
        mode="on",
        fingerprint=CONDITIONS,
        table=table,
        table_origin="table.json",
    )


def timed(call: Callable[[], object], repeats: int) -> dict[str, dict[str, float]]:
    """Return figures of the microseconds of `repeats` calls, by the clock and of the processor."""
    found = {}
    for name, now in (("clock", time.perf_counter_ns), ("processor", time.thread_time_ns)):
        times = []
        for _ in range(repeats):
            start = now()
            call()
            times.append((now() - start) / 1e3)
        found[name] = figures(times)
    return found


def figures(times: list[float]) -> dict[str, float]:
    """Return median, 99th percentile and largest, in microseconds."""
    ranked = sorted(times)
    return {
        "median_us": round(statistics.median(ranked), 2),
        "p99_us": round(ranked[int(0.99 * (len(ranked) - 1))], 2),
        "max_us": round(ranked[-1], 2),
        "calls": len(ranked),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loads", type=int, default=200)
    parser.add_argument("--consults", type=int, default=20_000)
    args = parser.parse_args()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        path = save_table(campaign_table(), Path(folder) / "table.json")
        size = path.stat().st_size
        loads = timed(lambda: load_table(path), args.loads)
        table = load_table(path)
    needs = [rng.randrange(32, TIERS[-1] + 1_024) // PAGE * PAGE + PAGE for _ in range(256)]
    requests = [request(need, table) for need in needs]
    asks = itertools.cycle(requests)
    consults = timed(lambda: choose_ring(next(asks)), args.consults)
    found = {"load": loads, "consult": consults}
    print(f"table of {len(TIERS)} tiers, {2 * len(TIERS)} entries, {size} bytes")
    for name, by in found.items():
        for what, one in by.items():
            print(
                f"{name:<8}{what:<10} median {one['median_us']:>8} us, 99 % {one['p99_us']:>9} us, "
                f"largest {one['max_us']:>9} us; limit {LIMITS_US[name]:,.0f} us"
            )
    imported = sorted(TUNER & {name.partition(".")[0] for name in sys.modules})
    print(f"heavy modules imported: {', '.join(imported) or 'none'}")
    machine = {"python": platform.python_version(), "processor": platform.processor()}
    print(json.dumps({**found, "table_bytes": size, "imported": imported, **machine}))


if __name__ == "__main__":
    main()
