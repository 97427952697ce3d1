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
    modules = {path: list(imports(path)) for path in sorted(ROOT.rglob("*.py"))}
    kernels = {
        path
        for path, names in modules.items()
        if any(name.split(".")[0] == "triton" for name, _ in names)
    }
    assert len(kernels) >= 3
    named = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in kernels}
    for path in kernels:
        assert path.is_relative_to(ROOT / "kernels"), path
        assert path.name not in ("__init__.py", "ref.py"), path
    for path in modules.keys() - kernels:
        for name, at_load in modules[path]:
            if name in named or name.rpartition(".")[0] in named:
                assert not at_load, f"{path} imports {name} before a kernel is wanted"
