"""Keep trials: the contract, the reference in memory, the database, the JSON lines."""

from __future__ import annotations

from pathlib import Path

from strata.errors import StoreError
from strata.tuner.store.base import TrialStore
from strata.tuner.store.jsonl import JsonlStore, export_jsonl, import_jsonl
from strata.tuner.store.memory import MemoryStore

__all__ = [
    "JsonlStore",
    "MemoryStore",
    "TrialStore",
    "export_jsonl",
    "import_jsonl",
    "open_database",
]


def open_database(path: Path, *, must_exist: bool = False) -> TrialStore:
    """Open the trial database at `path`; raise StoreError where it is locked, newer or foreign."""
    try:
        from strata.tuner.store.duck import DuckStore
    except ImportError:
        raise StoreError("the trial database needs duckdb: pip install 'strata[tune]'") from None
    return DuckStore(path, must_exist=must_exist)
