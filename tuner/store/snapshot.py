"""Copy a database that another process is writing, so that a running sweep can be watched.

The writer's lock keeps DuckDB from opening the file, and nobody from reading its bytes. A copy of
the file and of its log, taken while neither changed, is what a crash at that moment would leave:
DuckDB opens it up to the last whole transaction.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from strata.errors import StoreError

TRIES = 20
PAUSE_S = 0.1


class HeldError(StoreError):
    """Report that another process has the database open."""

    def __init__(self, what: str, *, holder: str) -> None:
        super().__init__(f"{what}: {holder} has it open; wait for it or give --db another path")
        self.holder = holder


@contextmanager
def copied(path: Path) -> Iterator[Path]:
    """Yield the path of a copy, which goes at the end; raise StoreError where there is none."""
    with tempfile.TemporaryDirectory(prefix="strata-") as folder:
        target = Path(folder) / path.name
        for _ in range(TRIES):
            before = _states(path)
            for source in _files(path):
                with suppress(FileNotFoundError):  # there is a log only where something is new
                    shutil.copyfile(source, target.with_name(source.name))
            if _states(path) == before:
                yield target
                return
            for left in Path(folder).iterdir():
                left.unlink()
            time.sleep(PAUSE_S)
    raise StoreError(f"{path} is written to all the time; read it again a little later")


def _files(path: Path) -> tuple[Path, Path]:
    return path, path.with_name(f"{path.name}.wal")


def _states(path: Path) -> list[tuple[int, int, int] | None]:
    """Return what changes when a file does: its number, size and time; None where there is none."""
    found: list[tuple[int, int, int] | None] = []
    for one in _files(path):
        try:
            facts = one.stat()
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
    return found


def holder_of(message: str) -> str:
    """Return who has the file by DuckDB's message, empty where that is not what is wrong."""
    text = " ".join(message.split())
    lowered = text.lower()
    if "lock" not in lowered or not ("conflicting" in lowered or "could not set" in lowered):
        return ""
    found = re.search(r"\(PID (\d+)\)", text)
    return f"process {found.group(1)}" if found else "another process"
