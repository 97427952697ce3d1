"""Look for a policy table that nobody named: exported by this user, or shipped with strata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from strata.errors import TableError
from strata.policy.asked import Asked
from strata.policy.table import PolicyTable
from strata.policy.table_file import load_table


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTable:
    """Hold a loaded table and the file that it came from."""

    table: PolicyTable
    path: Path


def user_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of exported tables: under XDG_DATA_HOME, else under the user's home."""
    base = environ.get("XDG_DATA_HOME", "")
    if base and Path(base).is_absolute():
        return Path(base) / "strata" / "policies"
    home = environ.get("HOME", "")
    return (Path(home) if home else Path.home()) / ".local" / "share" / "strata" / "policies"


def shipped_folder() -> Path:
    """Return the folder of the tables that come with the package."""
    return Path(__file__).resolve().parent.parent / "data" / "policies"


def search_folders(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders that are searched, the user's own first."""
    return (user_folder(environ), shipped_folder())


def read_folders(environ: Mapping[str, str]) -> tuple[list[FoundTable], list[str]]:
    """Return the tables in the search folders and a sentence for each file that is not one.

    Within a folder the newest comes first. A file that nobody named is no reason to stop, so a
    damaged one is reported, not raised.
    """
    found: list[FoundTable] = []
    broken: list[str] = []
    for folder in search_folders(environ):
        here: list[FoundTable] = []
        for path in _json_files(folder):
            try:
                here.append(FoundTable(table=load_table(path), path=path))
            except TableError as error:
                broken.append(str(error))
        found += sorted(here, key=lambda item: item.table.created, reverse=True)
    return found, broken


def find_table(environ: Mapping[str, str], asked: Asked) -> tuple[FoundTable | None, list[str]]:
    """Return the table with the fewest obstacles, and a sentence for each broken file.

    Of equals one that has an entry for this need and mode goes first, then the user's own, then
    the newest. One with obstacles is returned all the same, for the decision to refuse it and to
    name them.
    """
    found, broken = read_folders(environ)
    nearest = min(
        found,
        key=lambda item: (len(asked.obstacles(item.table)), not asked.has_entry(item.table)),
        default=None,
    )
    return nearest, broken


def _json_files(folder: Path) -> Iterator[Path]:
    try:
        yield from sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except OSError:
        return  # not there, or not ours to read: no tables
