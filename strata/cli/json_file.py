"""Write a command's result as one JSON object to where `--json` says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from strata.cli.output_file import check_output_file


def check_json_target(target: str | None) -> None:
    """Raise UsageError now where nothing could be written when the work is over."""
    if target is not None and target != "-":
        check_output_file(Path(target), "--json")


def write_json(target: str, result: dict[str, Any]) -> None:
    """Write `result` whole to the file `target`, or to stdout for '-'."""
    from strata.files import write_whole

    data = json.dumps(result, ensure_ascii=target == "-", indent=1) + "\n"
    if target == "-":
        sys.stdout.write(data)
        return
    write_whole(Path(target), data.encode())
