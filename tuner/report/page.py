"""placeholder"""

from pathlib import Path
from typing import Any


def write_report(summary: dict[str, Any], path: Path) -> None:
    """Write."""
    import json

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary))
