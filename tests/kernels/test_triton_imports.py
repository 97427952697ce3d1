"""Triton is imported by kernel files alone, and those only when a kernel is wanted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import strata

ROOT = Path(strata.__file__).parent


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield each absolute module name that `path` imports, and whether when it is loaded."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    at_load = set(map(id, tree.body))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in at_load
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                yield f"{node.module}.{alias.name}", id(node) in at_load


def test_only_kernel_files_import_triton() -> None:
    kernels = [*ROOT.glob("kernels/*/triton.py")]
    assert len(kernels) >= 3
    for path in sorted(ROOT.rglob("*.py")):
        for name, at_load in imports(path):
            if name.split(".")[0] == "triton":
                assert path in kernels, path
            kernel_file = name.startswith("strata.kernels.") and ".triton" in name
            if kernel_file and path not in kernels:
                assert not at_load, f"{path} imports {name} before a kernel is wanted"
