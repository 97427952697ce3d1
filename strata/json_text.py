"""Parse JSON and TOML that a person may have written: what is no value is said in plain words."""

from __future__ import annotations

import json
import tomllib
from typing import Any, NoReturn

MAX_DEPTH = 64
"""No file of strata's nests so deep; what does would exhaust whoever walks it."""
MAX_DIGITS = 400
"""Of a whole number; a float holds no more."""


def parse_json(content: bytes) -> Any:
    """Return the value of a JSON text in UTF-8; raise ValueError with what is wrong with it.

    NaN and infinities are refused, as are whole numbers of more than MAX_DIGITS digits and values
    that nest deeper than MAX_DEPTH.
    """
    try:
        value = json.loads(
            content.decode("utf-8"), parse_constant=_refuse_constant, parse_int=_bounded
        )
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    _check_depth(value)
    return value


def parse_toml(content: bytes) -> dict[str, Any]:
    """Return the table of a TOML text in UTF-8; raise ValueError with what is wrong with it."""
    try:
        value = tomllib.loads(content.decode("utf-8"))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except ValueError as error:
        if "integer string conversion" in str(error):
            raise ValueError("it has a whole number of thousands of digits") from None
        raise
    _check_depth(value)
    return value


_TOO_DEEP = f"it nests deeper than {MAX_DEPTH} levels"


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                below += one.values()
            elif isinstance(one, list):
                below += one
        if not below:
            return
        level = below
    raise ValueError(_TOO_DEEP)


def _bounded(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"it has a whole number of {len(digits)} digits")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
