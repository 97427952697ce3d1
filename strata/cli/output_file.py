"""Refuse a place that nothing could be written to, before any work is done for it.

What a user names must lie in a folder that is there: a misspelt one would be made in silence.
Folders that strata names itself, such as those in `runs/`, are made where they are written to.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from strata.errors import UsageError
from strata.files import is_stream, own_descriptor


def check_output_file(path: Path, option: str, *, only_plain: bool = False) -> None:
    """Raise UsageError, naming `option`, where no file can be written at `path`.

    With `only_plain` a pipe or a device is refused too: what is written is read again.
    """
    check_parent(path, option)
    if path.is_dir():
        raise UsageError(f"{option}: {path} is a folder; give a file")
    if only_plain and is_stream(path):
        raise UsageError(f"{option}: {path} is no plain file; give one")
    if (number := own_descriptor(path)) is not None:
        _check_descriptor(number, path, option)
        return
    try:
        real = path.resolve()
    except RuntimeError:  # what Python 3.11 makes of a link that ends in itself
        raise UsageError(f"{option}: {path} is a link that ends in itself") from None
    # A file is written beside itself and renamed; a device is written to.
    place = real if real.exists() and not real.is_file() else real.parent
    if real.is_socket():
        raise UsageError(f"{option}: {path} is a socket; give a file")
    if not os.access(place, os.W_OK):
        raise UsageError(f"{option}: {place} may not be written to; name another place")


def check_folder(path: Path, option: str, *, must_exist: bool = False) -> None:
    """Raise UsageError, naming `option`, where no file can be written into the folder `path`.

    One that is not there is made, unless it `must_exist`; the folder that holds it never is.
    """
    if path.exists() and not path.is_dir():
        raise UsageError(f"{option}: {path} is no folder")
    place = path if must_exist or path.exists() else path.absolute().parent
    if not place.is_dir():
        raise UsageError(f"{option}: {place} is no folder; make it, or name another")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UsageError(f"{option}: {place} may not be written to; name another place")


def _check_descriptor(number: int, path: Path, option: str) -> None:
    try:
        how = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError:
        raise UsageError(f"{option}: {path} is not open; give a file") from None
    if how == os.O_RDONLY:
        raise UsageError(f"{option}: {path} is open to be read alone; give a file")


def check_parent(path: Path, option: str) -> None:
    """Raise UsageError, naming `option`, where the folder that is to hold `path` is none."""
    if not path.parent.is_dir():
        raise UsageError(f"{option}: {path.parent} is no folder")
