"""A session must not pay for what it does not use, and the engine must not know the tuner."""

from __future__ import annotations

import subprocess
import sys

import strata.policy


def test_the_policies_import_nothing_heavy():
    code = "import sys, strata.policy; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    heavy = {"torch", "numpy", "pandas", "jsonschema", "pydantic", "typer", "duckdb", "optuna"}
    assert loaded & heavy == set()
    assert not {"strata.models", "strata.tuner"} & set(done.stdout.split())


def test_public_names_are_sorted_and_there():
    names = strata.policy.__all__
    assert sorted(names, key=lambda name: (not name.isupper(), name)) == names
    assert all(hasattr(strata.policy, name) for name in names)
