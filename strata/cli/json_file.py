"""Write a command's result as one JSON object to where `--json` says."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from strata.errors import UsageError


def check_json_target(target: str | None) -> None:
    """Raise UsageError now where nothing could be written when the work is over."""
    if target in (None, "-"):
        return
    path = Path(target)
    if not path.parent.is_dir():
        raise UsageError(f"--json: {path.parent} is no folder")
    if path.is_dir():
        raise UsageError(f"--json: {path} is a folder; give a file")
    try:
        real = path.resolve()
    except RuntimeError:  # what Python 3.11 makes of a link that ends in itself
        raise UsageError(f"--json: {path} is a link that ends in itself") from None
    # A file is written beside itself and renamed; a device is written to.
    place = real if real.exists() and not real.is_file() else real.parent
    if not os.access(place, os.W_OK):
        raise UsageError(f"--json: {place} may not be written to; name another place")


def write_json(target: str, result: dict[str, Any]) -> None:
    """Write `result` whole to the file `target`, or to stdout for '-'."""
    from strata.files import write_whole

    data = json.dumps(result, ensure_ascii=target == "-", indent=1) + "\n"
    if target == "-":
        sys.stdout.write(data)
        return
    write_whole(Path(target), data.encode())
