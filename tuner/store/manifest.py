"""The manifest beside a study's files: what each must be, so that a damaged copy is refused.

A manifest is written last and forgotten first, so one that is there speaks of the files beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from strata.errors import StoreError
from strata.files import write_whole

SCHEMA = "strata.study-files/1"
FOLDER_NAME = "manifest.json"
FILE_SUFFIX = ".manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFacts:
    """What one file must be."""

    rows: int
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path, *, rows: int) -> FileFacts:
        """Return the facts of the file at `path`, which holds so many rows."""
        with path.open("rb") as file:
            hashed = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(rows=rows, bytes=path.stat().st_size, sha256=hashed)


def beside(path: Path) -> Path:
    """Return where the manifest of a single file or of a folder lies."""
    return path / FOLDER_NAME if path.is_dir() else path.with_name(path.name + FILE_SUFFIX)


def write_manifest(place: Path, *, study: str, files: Mapping[str, FileFacts]) -> None:
    """Write the manifest of some files of one study to `place`; raise OSError as the system does.

    `files` maps names in the folder of `place` to what they must be.
    """
    listed = {name: asdict(facts) for name, facts in files.items()}
    document = {"schema": SCHEMA, "study": study, "files": listed}
    write_whole(place, (json.dumps(document, indent=1) + "\n").encode())


def check_manifest(place: Path) -> dict[str, FileFacts]:
    """Return the facts of the files that the manifest at `place` speaks of, each held against it.

    Raises StoreError that names the file and what differs: missing, shorter, of another SHA-256.
    """
    files = _read(place)
    for name, wanted in files.items():
        path = place.parent / name
        try:
            found = FileFacts.of(path, rows=wanted.rows)
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}; {place} names it") from None
        for field in ("bytes", "sha256"):
            here, there = getattr(found, field), getattr(wanted, field)
            if here != there:
                raise StoreError(
                    f"{path} is damaged: {field} {str(here)[:16]}, and {place.name} says "
                    f"{str(there)[:16]}; copy it again, or export it again"
                )
    return files


def check_rows(path: Path, facts: FileFacts, *, found: int) -> None:
    """Raise StoreError where a file holds another number of rows than its manifest says."""
    if found != facts.rows:
        raise StoreError(f"{path} holds {found} rows, and its manifest says {facts.rows}")


def _read(place: Path) -> dict[str, FileFacts]:
    try:
        document: Any = json.loads(place.read_bytes())
    except OSError as error:
        raise StoreError(f"{place} cannot be read: {error.strerror}") from None
    except ValueError:
        raise StoreError(f"{place} is damaged: it is not JSON") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise StoreError(f"{place} is no manifest of a study: expected schema {SCHEMA!r}")
    listed = document.get("files")
    names = {field.name for field in fields(FileFacts)}
    if not isinstance(listed, dict) or not listed:
        raise StoreError(f"{place} is damaged: it names no file")
    for name, facts in listed.items():
        if not isinstance(facts, dict) or set(facts) != names or Path(name).name != name:
            raise StoreError(f"{place} is damaged: what it says of {name!r} is not {sorted(names)}")
    return {name: FileFacts(**facts) for name, facts in listed.items()}
