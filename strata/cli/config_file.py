"""Read `strata.toml`: a default for any switch of any command, by its long name.

A table a command (`[generate]`, `[policy.explain]`); what stands in `[tune]` itself is `sweep`'s.
A switch on the command line goes before the environment, which goes before the file in the working
directory, which goes before the user's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from typer.models import OptionInfo

from strata.env import KV_RING_ADAPT, KV_RING_POLICY, KV_RING_TABLE, nearest, read_switch, read_text
from strata.errors import UsageError
from strata.json_text import parse_toml

NAME = "strata.toml"
Scalar = str | int | float | bool
_TOML_TYPES: dict[type, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    Path: ((str,), "a text"),
    str: ((str, int), "a text or a whole number"),
}
_NUMBERS = {"CELLS", "N", "SIZE", "LIST", "COUNTS", "SIZES"}
"""Words of a switch that may be a bare number."""


@dataclass(slots=True)
class Defaults:
    """What the files say: the parser's own map of defaults, and which file said what."""

    map: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    """The file that names a switch, by ``--switch``, for the command that is run."""
    warnings: list[str] = field(default_factory=list)


def read_defaults(
    root: Any, running: str | None, named: Path | None, environ: Mapping[str, str]
) -> Defaults:
    """Return the defaults for the commands below `root`; `named` is read in place of the others.

    `running` is the command below `root` that is asked for: of others nothing is warned. Raises
    UsageError, naming file and key, for what no command knows and for a value of a wrong type.
    """
    found = Defaults()
    for file in [named] if named is not None else _usual_files(environ):
        for path, option, value in _walk(root, _load(file), (), file):
            if (variable := _set_variable(option, environ)) is not None:
                if path[0] == running:
                    key = max(option.opts, key=len).removeprefix("--")
                    found.warnings.append(f"{variable} goes before {key} of {file}")
                continue
            table = found.map
            for word in path:
                table = table.setdefault(word, {})
            table[option.name] = value
            if path[0] == running:
                found.places |= dict.fromkeys(option.opts, str(file))
    return found


def _usual_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the files that are there, the weakest first."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if not (base and Path(base).is_absolute()):
        base = str(Path(environ.get("HOME") or Path.home()) / ".config")
    return [one for one in (Path(base) / "strata" / NAME, Path(NAME)) if one.exists()]


def _load(file: Path) -> dict[str, Any]:
    try:
        return parse_toml(file.read_bytes())
    except ValueError as error:
        raise UsageError(f"{file} is no TOML that can be read: {error}") from None


def _walk(
    command: Any, table: dict[str, Any], path: tuple[str, ...], file: Path
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield (path of the command, option, value) of everything in `table`."""
    commands: dict[str, Any] = getattr(command, "commands", {})
    by_default: str | None = getattr(command, "default_command", None)
    owner = commands[by_default] if by_default else command
    options = {
        word.removeprefix("--"): option
        for option in (owner.params if path else ())
        for word in option.opts
        if option.param_type_name == "option" and word.startswith("--") and not option.is_eager
    }
    where = f"[{'.'.join(path)}]" if path else "the top"
    given: dict[Any, str] = {}
    for key, value in table.items():
        if key in commands:
            if not isinstance(value, dict):
                raise UsageError(f"{file}: {key} at {where} is a command; write [{key}] for it")
            yield from _walk(commands[key], value, (*path, key), file)
        elif key in options:
            option = options[key]
            if option in given or (by_default and key in _table(table.get(by_default))):
                raise UsageError(f"{file}: {key} of {where} is said twice; keep one")
            given[option] = key
            own = (*path, by_default) if by_default else path
            yield own, option, _value(owner, option, value, f"{file}: {key} in {where}")
        else:
            kind = "command or switch" if path else "command"
            hint = nearest(key, [*commands, *options])
            raise UsageError(f"{file}: {key!r} in {where} is no {kind}{hint}")


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _value(owner: Any, option: Any, value: object, where: str) -> Scalar | list[Scalar]:
    """Return what the parser is to take for `value`; raise UsageError for another type or range."""
    hint = get_type_hints(inspect.unwrap(owner.callback), include_extras=True)[option.name]
    kind, info = get_args(hint)[:2]
    kinds = [one for one in (get_args(kind) or (kind,)) if one is not NoneType]
    if get_origin(kinds[0]) is list:
        listed = value if isinstance(value, list) else [value]
        return [_scalar(get_args(kinds[0])[0], info, one, where) for one in listed]
    return _scalar(kinds[0], info, value, where)


def _scalar(kind: type, info: OptionInfo, value: object, where: str) -> Scalar:
    if get_origin(kind) is Literal:
        if value not in (choices := get_args(kind)):
            raise UsageError(f"{where} is {value!r}; give {' or '.join(map(repr, choices))}")
        return str(value)
    types, words = _TOML_TYPES[kind]
    if kind is str and not _NUMBERS & {*(info.metavar or "").split("|")}:
        types, words = (str,), "a text"
    if not isinstance(value, types) or (kind is not bool and isinstance(value, bool)):
        raise UsageError(f"{where} is {value!r}; give {words}")
    assert isinstance(value, Scalar)
    if isinstance(value, int | float) and kind is not str:
        least, most = info.min, info.max
        if (least is not None and value < least) or (most is not None and value > most):
            bounds = [f"at least {least}"] * (least is not None)
            bounds += [f"at most {most}"] * (most is not None)
            raise UsageError(f"{where} is {value}; give {' and '.join(bounds)}")
    return str(value) if kind is str else value


def _set_variable(option: Any, environ: Mapping[str, str]) -> str | None:
    """Return the variable that is set and says what `option` says, None for none."""
    if "--kv-ring-policy" in option.opts:
        if read_text(environ, KV_RING_POLICY) is not None:
            return KV_RING_POLICY
        return KV_RING_ADAPT if read_switch(environ, KV_RING_ADAPT) else None
    if "--kv-ring-table" in option.opts and read_text(environ, KV_RING_TABLE) is not None:
        return KV_RING_TABLE
    return None
