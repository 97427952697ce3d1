"""Read and write policy tables as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from strata.errors import TableError
from strata.files import write_whole
from strata.json_text import parse_json
from strata.policy.table import PolicyTable
from strata.policy.table_document import from_document, to_document

MAX_FILE_BYTES = 16 << 20
"""No table comes near this; a larger file is something else, and reading it would cost memory."""


def read_document(path: Path) -> Any:
    """Return what the JSON file at `path` holds, unchecked; raise TableError where it is none."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise TableError(f"policy table {path} does not exist") from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise TableError(f"policy table {path} cannot be read: {why}") from error
    if len(content) > MAX_FILE_BYTES:
        raise TableError(
            f"policy table {path} is larger than any table: over {MAX_FILE_BYTES} bytes"
        )
    try:
        return parse_json(content)
    except ValueError as error:
        raise TableError(f"policy table {path} is not JSON: {error}") from error


def load_table(path: str | Path) -> PolicyTable:
    """Return the table in the file at `path`, every field checked.

    Raises TableError, naming the file and the place in it, where the file is missing,
    unreadable, not JSON, of another schema, damaged, or not what the schema says.
    """
    path = Path(path)
    try:
        return from_document(read_document(path))
    except TableError as error:
        if str(error).startswith("policy table "):
            raise
        raise TableError(f"policy table {path}: {error}") from error


def dump_table(table: PolicyTable) -> str:
    """Return the text of a table file; raise TableError for a table that no reader would accept."""
    document = to_document(table)
    from_document(document)
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def save_table(table: PolicyTable, path: str | Path) -> Path:
    """Write `table` to `path` and return the path.

    The text is written beside the target, flushed and renamed over it, so that a reader sees the
    old table or the new one, and a full disk leaves the old one. Missing folders are made.
    Raises TableError where the table is invalid or the file cannot be written.
    """
    path = Path(path)
    text = dump_table(table)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        why = error.strerror or str(error)
        raise TableError(f"policy table {path} could not be written: {why}") from error
    return path
