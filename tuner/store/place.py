"""Where a database may lie, and how a new one comes to be there: whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from strata.errors import StoreError

OFFLINE = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
"""A path may make DuckDB fetch code from the network; none is needed here."""


def connect() -> duckdb.DuckDBPyConnection:
    """Return a connection with nothing but memory behind it, which fetches no extension."""
    return duckdb.connect(":memory:", config=dict(OFFLINE))


def log_of(path: Path) -> Path:
    """Return the file beside a database that has what was committed last."""
    return path.with_name(f"{path.name}.wal")


def refuse_place(path: Path) -> None:
    """Raise StoreError where `path` is no plain file's, before DuckDB touches it.

    DuckDB takes ``:memory:``, ``md:`` and the like for something else than a file, a log without
    its database would be lost to a new one, and a pipe would wait for ever.
    """
    if not path.is_absolute() and ":" in "".join(path.parts[:1]):
        raise StoreError(
            f"{path} is no plain file's name: what stands before a colon may mean memory or a "
            "server; name a file, one with a colon by its whole path"
        )
    if path.exists() and not path.is_file():
        what = "a folder" if path.is_dir() else "no plain file"
        raise StoreError(f"{path} is {what}; give --db a file")
    if not path.exists():
        if log_of(path).exists():
            raise StoreError(
                f"no trial database at {path}, and {log_of(path).name} is there: it holds what was "
                "stored last; put its database back beside it, or move it away"
            )
        return
    try:
        with path.open("rb") as file:
            head = file.read(12)
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror}") from None
    if head[8:12] != b"DUCK":
        raise StoreError(f"{path} is not a trial database; give --db another path")


@contextmanager
def made_beside(path: Path) -> Iterator[Path]:
    """Yield a path to make a file at; it gets the name `path` at the end, unless one has it then.

    Nothing is left where that fails, not even by a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name[:64]}.", dir=path.parent))
    try:
        yield folder / "new"
        try:
            os.link(folder / "new", path)
        except FileExistsError:
            pass  # another process was faster, and its file is as good
        except OSError:  # a file system without links
            (folder / "new").rename(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
