"""Hold a policy table's document against the published JSON Schema.

A session does without: importing a validator takes longer than reading a table. This serves
`strata policy validate`, and the tests that keep the reader's own checks and the schema alike.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

from strata.errors import TableError

SCHEMA_FILE = Path(__file__).resolve().parent.parent / "data/schemas/ring-policy-1.schema.json"


def load_schema() -> dict[str, Any]:
    """Return the published JSON Schema of a policy table."""
    schema: dict[str, Any] = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    return schema


def check_schema(document: object) -> None:
    """Raise TableError, naming the place, where `document` is not what the schema says."""
    validator = jsonschema.Draft202012Validator(load_schema())
    error = jsonschema.exceptions.best_match(validator.iter_errors(document))
    if error is not None:
        where = error.json_path.removeprefix("$").removeprefix(".") or "the document"
        raise TableError(f"{where}: {error.message}")
