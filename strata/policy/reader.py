"""Take typed values out of a parsed JSON object, and say where one is not what it should be.

A few plain checks, because a table is read each time a session is created and a general
validator takes longer to import than a table takes to load. `strata policy validate` and the
tests hold them against the published JSON Schema.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from strata.errors import TableError

T = TypeVar("T")

_MOST = 1e300
_MOST_WHOLE = 1 << 53
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|\+00:00)", re.ASCII)


class ObjectReader:
    """Read one JSON object field by field; `close` refuses the fields that nobody asked for."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise TableError(f"{where or 'the document'} must be an object, got {_kind(value)}")
        self._fields: dict[str, Any] = value
        self._where = where
        self._asked: set[str] = set()

    def path(self, name: str) -> str:
        """Return where the field `name` stands in the document."""
        return f"{self._where}.{name}" if self._where else name

    def take(self, name: str) -> Any:
        """Return the field as it is; raise TableError where it is missing."""
        self._asked.add(name)
        if name not in self._fields:
            raise TableError(f"{self.path(name)} is missing")
        return self._fields[name]

    def text(self, name: str) -> str:
        """Return a string that is not empty."""
        value = self.take(name)
        if not isinstance(value, str) or not value:
            raise self.refuse(name, "a string that is not empty", value)
        return value

    def instant(self, name: str) -> str:
        """Return a UTC instant as ISO 8601 writes it."""
        value = self.take(name)
        if not isinstance(value, str) or not _INSTANT.fullmatch(value):
            raise self.refuse(name, "a UTC instant such as 2026-01-31T12:00:00Z", value)
        return value

    def integer(self, name: str, *, at_least: int) -> int:
        """Return a whole number of at least `at_least`, and not past any machine's."""
        value = self.take(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            raise self.refuse(name, f"a whole number of at least {at_least}", value)
        if value > _MOST_WHOLE:
            raise self.refuse(name, f"at most {_MOST_WHOLE}", value)
        return value

    def number(self, name: str, *, above: float = -math.inf, below: float = math.inf) -> float:
        """Return a finite number strictly between `above` and `below`."""
        value = self.take(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.refuse(name, "a number", value)
        if not (above < value < below and abs(value) <= _MOST):
            raise self.refuse(name, f"a number above {above} and below {below}", value)
        return float(value)

    def share(self, name: str) -> float:
        """Return a number from 0 up to, but not at, 1."""
        value = self.take(name)
        if value == 0 and not isinstance(value, bool):
            return 0.0
        return self.number(name, above=0.0, below=1.0)

    def boolean(self, name: str) -> bool:
        """Return true or false."""
        value = self.take(name)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false", value)
        return value

    def one_of(self, name: str, choices: Sequence[str]) -> str:
        """Return one of the strings in `choices`."""
        value = self.take(name)
        if not isinstance(value, str) or value not in choices:
            raise self.refuse(name, f"one of {', '.join(choices)}", value)
        return value

    def matching(self, name: str, pattern: str, words: str) -> str:
        """Return a string that `pattern` matches from end to end."""
        value = self.take(name)
        if not isinstance(value, str) or not re.fullmatch(pattern, value, re.ASCII):
            raise self.refuse(name, words, value)
        return value

    def word_or_integer(self, name: str, word: str, *, at_least: int) -> Any:
        """Return the string `word` or a whole number of at least `at_least`."""
        return word if self.take(name) == word else self.integer(name, at_least=at_least)

    def optional(self, name: str, read: Callable[[str], T]) -> T | None:
        """Return what `read` makes of the field, None where it is null."""
        return None if self.take(name) is None else read(name)

    def child(self, name: str) -> ObjectReader:
        """Return a reader of the object that the field holds."""
        return ObjectReader(self.take(name), self.path(name))

    def children(self, name: str) -> Iterator[ObjectReader]:
        """Yield a reader of each object in the list that the field holds."""
        values = self.take(name)
        if not isinstance(values, list):
            raise self.refuse(name, "a list", values)
        for index, value in enumerate(values):
            yield ObjectReader(value, f"{self.path(name)}[{index}]")

    def scalars(self) -> dict[str, Any]:
        """Return every field of an open object, whose values must be strings, numbers or null."""
        for name, value in self._fields.items():
            if isinstance(value, dict | list):
                raise self.refuse(name, "a string, a number, a boolean or null", value)
        self._asked.update(self._fields)
        return dict(self._fields)

    def close(self) -> None:
        """Raise TableError for a field that this version does not know."""
        unknown = sorted(set(self._fields) - self._asked)
        if unknown:
            raise TableError(f"{self.path(unknown[0])} is not a field of this schema")

    def refuse(self, name: str, wanted: str, value: object) -> TableError:
        """Return the error that names the field, what it should be and what it is."""
        return TableError(f"{self.path(name)} must be {wanted}, got {_kind(value)}")


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "null"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
