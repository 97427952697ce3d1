"""Loading and consulting a table imports nothing of the tuner, nor torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

GOLDEN = Path(__file__).parent.parent / "golden" / "ring-policy-1.json"
CODE = """
import sys
from strata.policy import RingRequest, choose_ring, load_table
table = load_table(sys.argv[1])
decision = choose_ring(RingRequest(
    policy="learned", need_cells=96, max_context_cells=96, page_cells=16, minimum_cells=32,
    default_cells=64, mode="on", fingerprint=table.fingerprint, table=table, table_origin="golden",
))
assert decision.table == "golden", decision.reason
print(*sys.modules, sep="\\n")
"""


def test_consulting_a_table_imports_no_library_of_the_tuner() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(GOLDEN)], capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    heavy = {"sklearn", "optuna", "duckdb", "pandas", "scipy", "numpy", "torch", "pydantic"}
    assert loaded & heavy == set()
    assert not {"strata.models", "strata.tuner"} & set(done.stdout.split())
