"""Refuse a place that nothing could be written to, before any work is done for it.

What a user names must lie in a folder that is there: a misspelt one would be made in silence.
Folders that strata names itself, such as those in `runs/`, are made where they are written to.
"""

from __future__ import annotations

import os
from pathlib import Path

from strata.errors import UsageError


def check_output_file(path: Path, option: str) -> None:
    """Raise UsageError, naming `option`, where no file can be written at `path`."""
    check_parent(path, option)
    if path.is_dir():
        raise UsageError(f"{option}: {path} is a folder; give a file")
    try:
        real = path.resolve()
    except RuntimeError:  # what Python 3.11 makes of a link that ends in itself
        raise UsageError(f"{option}: {path} is a link that ends in itself") from None
    # A file is written beside itself and renamed; a device is written to.
    place = real if real.exists() and not real.is_file() else real.parent
    if not os.access(place, os.W_OK):
        raise UsageError(f"{option}: {place} may not be written to; name another place")


def check_parent(path: Path, option: str) -> None:
    """Raise UsageError, naming `option`, where the folder that is to hold `path` is none."""
    if not path.parent.is_dir():
        raise UsageError(f"{option}: {path.parent} is no folder")
