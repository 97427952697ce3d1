"""Keep a file that grows to one process, as the database keeps its own."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from strata.errors import StoreError

LOCKS = Path("/proc/locks")


def open_alone(path: Path) -> BinaryIO:
    """Open a file to add to; raise StoreError where another process is adding to it.

    The lock goes with the file that is returned, however its process ends. A file system that knows
    no locks gives none.
    """
    file = path.open("ab")
    with suppress(OSError):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise StoreError(
                f"{path}: {_holder(path)} is adding trials to it; wait for that to end, or give "
                "another file"
            ) from None
    return file


def _holder(path: Path) -> str:
    """Return who has the lock, as far as the system tells."""
    facts = path.stat()
    place = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
    with suppress(OSError):
        for line in LOCKS.read_text(encoding="ascii").splitlines():
            words = line.split()
            if len(words) > 5 and words[1] == "FLOCK" and words[5] == place:
                return f"process {words[4]}"
    return "another process"
