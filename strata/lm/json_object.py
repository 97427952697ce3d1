"""Read a JSON file of a checkpoint, and its keys as what they must be."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from strata.errors import CheckpointError

_MOST_DIGITS = 20
_LARGEST = 2**31 - 1


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`.

    Raises CheckpointError for a file that cannot be read, holds something else, is nested too
    deep, or names a key twice.
    """
    if not path.is_file():  # a pipe would be waited for
        raise CheckpointError(f"{path} cannot be read as JSON: it is no file")
    try:
        raw = json.loads(
            path.read_text(encoding="utf-8"), object_pairs_hook=_once, parse_int=_bounded
        )
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from None
    except RecursionError:
        raise CheckpointError(f"{path} cannot be read as JSON: it is nested too deep") from None
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return raw


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return `pairs` as a mapping; which of two values counts is no guess to make."""
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"the key {twice[:60]!r} stands there twice")
    return made


def _bounded(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


class Keys:
    """The keys of a JSON object, each taken once as the type that it must have.

    A key whose value is null is absent. Raises ValueError, naming the key as the file does, for
    a value of another type, and KeyError for an absent key that has no default.
    """

    def __init__(self, raw: dict[str, Any], within: str = "") -> None:
        self._left = {key: value for key, value in raw.items() if value is not None}
        self._within = within

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def integer(self, name: str, *, alias: str = "", default: int | None = None) -> int:
        """Take a whole number above 0, or `default`; `alias` is another name of the same key."""
        found = {one: self._whole(one) for one in (name, alias) if one in self}
        if len(set(found.values())) > 1:
            raise ValueError(
                f"{name} is {found[name]} and {alias} is {found[alias]}, "
                "which are two names of one key"
            )
        value = next(iter(found.values()), default)
        if value is None:
            raise KeyError(self._within + name)
        if value < 1 and value != default:
            raise ValueError(f"{self._within}{name} is {value}, which is not above 0")
        return value

    def _whole(self, name: str) -> int:
        value = self._left.pop(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{self._within}{name} is {say(value)}, which is no whole number")
        if value > _LARGEST:
            raise ValueError(f"{self._within}{name} is {value}, which is above {_LARGEST}")
        return value

    def number(self, name: str, *, default: float | None = None) -> float:
        """Take a finite number above 0."""
        value = self._take(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{self._within}{name} is {say(value)}, which is no number")
        if not math.isfinite(value) or value <= 0:
            raise ValueError(f"{self._within}{name} is {say(value)}, which is not above 0")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """Take a truth value."""
        value = self._left.pop(name, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self._within}{name} is {say(value)}, which is not true or false")
        return value

    def word(self, name: str, *, default: str | None = None) -> str:
        """Take a text."""
        value = self._take(name, default)
        if not isinstance(value, str):
            raise ValueError(f"{self._within}{name} is {say(value)}, which is no text")
        return value

    def value(self, name: str) -> Any:
        """Take whatever there is, None where there is nothing."""
        return self._left.pop(name, None)

    def words(self, name: str) -> list[str] | None:
        """Take a list of words, None where it is absent."""
        value = self._left.pop(name, None)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise ValueError(f"{self._within}{name} is {say(value)}, which is no list of words")
        return value

    def mapping(self, name: str) -> Keys:
        """Take an object."""
        value = self._take(name, None)
        if not isinstance(value, dict):
            raise ValueError(f"{self._within}{name} is {say(value)}, which is no JSON object")
        return Keys(value, f"{self._within}{name}.")

    def rest(self) -> dict[str, Any]:
        """Return what nobody took, by its full name."""
        return {self._within + name: value for name, value in self._left.items()}

    def _take(self, name: str, default: Any) -> Any:
        value = self._left.pop(name, default)
        if value is None:
            raise KeyError(self._within + name)
        return value


def say(value: Any) -> str:
    """Return `value` as its file spells it, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
