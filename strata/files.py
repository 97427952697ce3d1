"""Write a file whole or not at all."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from pathlib import Path

MAX_LINKS = 40


def own_descriptor(path: Path) -> int | None:
    """Return the number of the open file of this process that a path names, None where it is none.

    ``/dev/stdout``, ``/dev/fd/3`` and what a shell gives for ``>(cat)`` are such names. What they
    lead to may have no name of its own, and a file put in its place would reach nobody.
    """
    folders = (f"/proc/{os.getpid()}/fd", "/dev/fd")
    for _ in range(MAX_LINKS):
        if path.name.isdecimal() and os.path.realpath(path.parent) in folders:
            return int(path.name)
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


def is_stream(path: Path) -> bool:
    """Return whether a path is written to as it is: a pipe, a device, an open file's number."""
    return own_descriptor(path) is not None or (path.exists() and not path.is_file())


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` beside `path`, then rename over it; on failure nothing is left behind.

    A link is followed, and what is no ordinary file (``/dev/null``, a pipe) is written to, never
    replaced. Raises OSError, naming `path`, as the system gives it (full disk, no such folder,
    no permission).
    """
    try:
        if (number := own_descriptor(path)) is not None:
            _write_to(number, data)
            return
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target, data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    except RuntimeError:  # what Python 3.11 makes of a link that ends in itself
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None


def _write_to(number: int, data: bytes) -> None:
    sys.stdout.flush()  # what was said before comes before
    with os.fdopen(os.dup(number), "wb") as file:
        file.write(data)


def _replace(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:64]}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
