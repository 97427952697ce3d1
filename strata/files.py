"""Write a file whole or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` beside `path`, then rename over it; on failure nothing is left behind.

    A link is followed, and what is no ordinary file (``/dev/null``, a pipe) is written to, never
    replaced. Raises OSError, naming `path`, as the system gives it (full disk, no such folder,
    no permission).
    """
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target, data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    except RuntimeError:  # what Python 3.11 makes of a link that ends in itself
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from None


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
