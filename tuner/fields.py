"""What a field of a stored record may hold: the one home of every range, whoever asks.

The writer, `import` of either kind of file, the database and the doctor all read and check records
through `check_fields`. A bound is far beyond what any machine does; it is there so that a figure
that nobody can have measured is refused where it comes in.
"""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    create_model,
)

from strata.config import MAX_DRAFTS
from strata.errors import StoreError
from strata.units import MAX_CELLS

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"
"""What a plan, and so a study, may be called: it goes into the names of folders and files."""

MAX_COUNT = 1 << 53
MAX_RATE = MAX_SECONDS = 1e9
SHOWN = 80
_GAUGES = ("load_average_1min", "sm_clock_mhz", "memory_clock_mhz", "power_w", "power_limit_w",
           "temperature_c", "other_gpu_processes")  # fmt: skip


def one_of(*words: str) -> AfterValidator:
    """Return a rule: the text is one of some words."""

    def check(value: str) -> str:
        if value not in words:
            raise ValueError(f"is none of {', '.join(words)}")
        return value

    return AfterValidator(check)


def _plain(value: Any) -> Any:
    """Refuse what is no JSON, and half of a surrogate pair: nothing prints or stores it."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a character") from None
    except RecursionError:
        raise ValueError("lies too deep in itself") from None
    except (TypeError, ValueError):
        raise ValueError("is no JSON") from None
    return value


def _gauges(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse conditions of which a summary could not be made."""
    for name in _GAUGES:
        found = value.get(name, 0)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise ValueError(f"holds no number under {name!r}")
    limits = value.get("clock_limits", [])
    if not isinstance(limits, list) or not all(isinstance(one, str) for one in limits):
        raise ValueError("holds no list of words under 'clock_limits'")
    return value


Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Word = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$", max_length=1_000)]
Text = Annotated[str, AfterValidator(_plain)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Cells = Annotated[int, Field(ge=0, le=MAX_CELLS)]
Depth = Annotated[int, Field(ge=1, le=MAX_CELLS)]
Drafts = Annotated[int, Field(ge=0, le=MAX_DRAFTS)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Rate = Annotated[float, Field(gt=0, le=MAX_RATE)]
Ratio = Annotated[float, Field(gt=0, le=MAX_RATE)]
Facts = Annotated[dict[str, Any], AfterValidator(_plain)]
Conditions = Annotated[Facts, AfterValidator(_gauges)]


def check_fields(record: type[object], values: Mapping[str, object], *, origin: str) -> None:
    """Raise StoreError, naming `origin` and the key, where a field of a record cannot be.

    `values` has the fields of the dataclass `record`, those with a default perhaps left out.
    """
    try:
        _model(record).model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, value = str(first["loc"][0]), values.get(str(first["loc"][0]))
        if first["type"] == "value_error":
            raise StoreError(f"{origin}: {key} {shown(value)} {_words(first)}") from None
        raise StoreError(
            f"{origin}: key {key!r} cannot be {shown(value)}: {_words(first)}"
        ) from None


def shown(value: object) -> str:
    """Return a value as a message shows it: in one line, not too long."""
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # an integer of too many digits, lists in lists
        return f"such a {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def is_name(text: str) -> bool:
    """Return whether a text may be the name of a study, and so a part of a path."""
    return re.fullmatch(NAME_PATTERN.strip("^$"), text) is not None


def _words(error: Any) -> str:
    words: str = error["msg"]
    words = words.removeprefix("Value error, ").removeprefix("Input should be ")
    return words.replace("String should match pattern", "its pattern is")


_MODELS: dict[type[object], type[BaseModel]] = {}


def _model(record: type[object]) -> type[BaseModel]:
    """Return what checks the fields of a dataclass, made once."""
    if record not in _MODELS:
        hints = typing.get_type_hints(record, include_extras=True)
        fields: dict[str, Any] = {
            field.name: (hints[field.name], _default(field))
            for field in dataclasses.fields(cast(Any, record))
        }
        config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
        made: Callable[..., type[BaseModel]] = create_model
        _MODELS[record] = made(record.__name__, __config__=config, **fields)
    return _MODELS[record]


def _default(field: dataclasses.Field[Any]) -> Any:
    has_none = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    return ... if has_none else None
