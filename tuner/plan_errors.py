"""Say in one sentence what is wrong with a plan, with the key and the line where it stands."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ValidationError

_TYPES = ("tuple[", "dict[", "literal[", "function-", "constrained-", "nullable[")
"""How pydantic names the branch of a union in an error's path; no key of a plan looks so."""

LONGEST = 80
"""Characters of a wrong value that are shown."""


def explain(error: ValidationError, text: str, plan: type[BaseModel]) -> str:
    """Return one sentence for the first thing that is wrong with a plan."""
    # A misspelt key says more than the one it leaves out, and of a union the branch that got far.
    found = error.errors(include_url=False)
    first = min(found, key=lambda one: (one["type"] != "extra_forbidden", -len(one["loc"])))
    path = [str(part) for part in first["loc"] if not str(part).startswith(_TYPES)]
    if first["type"] == "extra_forbidden":
        known = ", ".join(sorted(_fields(plan, path[:-1])))
        where = f"in [{path[-2]}]" if len(path) > 1 else "at the top level"
        return f"unknown key {path[-1]!r} {where}{_line(text, path)}; known keys there: {known}"
    message = str(first["msg"]).removeprefix("Value error, ").replace("valid tuple", "list")
    if first["type"] == "missing":
        return f"key {'.'.join(path)!r} is missing"
    place = f"{'.'.join(path)}{_line(text, path)}: " if path else ""
    got = "" if first["type"] == "value_error" else f" (got {_short(first['input'])})"
    return f"{place}{message[0].lower()}{message[1:]}{got}"


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python's own limit on the digits of a number
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _fields(plan: type[BaseModel], path: list[str]) -> dict[str, Any]:
    section = plan
    for part in path:
        section = section.model_fields[part].annotation  # type: ignore[assignment]
    return dict(section.model_fields)


def _line(text: str, path: list[str]) -> str:
    """Return `` (line N)`` for a key, or nothing where it was not written on a line of its own."""
    section, keys = "", [part for part in path if not part.isdigit()]
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[([\w.-]+)\]", line):
            section = header.group(1)
            if keys == [section]:
                return f" (line {number})"
        key = re.match(r"\s*([\w-]+)\s*=", line)
        if key and keys[:2] == [*filter(None, [section]), key.group(1)]:
            return f" (line {number})"
    return ""
