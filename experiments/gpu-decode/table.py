"""Print the table of a results file of run.py as Markdown.

python experiments/gpu-decode/table.py experiments/gpu-decode/results.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def describe(row: dict[str, Any]) -> str:
    if row["arm"] != "strata":
        return str(row["arm"])
    words = [f"drafts {row['drafts']}", "captured" if row["graphs"] else "eager"]
    words += [f"ring {row['ring']:,}"] if row.get("ring") else ["all resident"]
    words += [f"selection {row['select']}"] if row.get("select") else []
    return "strata, " + ", ".join(words)


def main() -> None:
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    print("| depth | arm | tok/s (min-max) | tokens/round |\n| --- | --- | --- | --- |")
    for row in map(json.loads, lines):
        rate = row.get("tok_s")
        shown = (
            f"{rate['median']:,.0f} ({rate['min']:,.0f}-{rate['max']:,.0f})"
            if rate
            else row["error"]
        )
        per_round = row.get("tokens_round")
        print(f"| {row['depth']:,} | {describe(row)} | {shown} | {per_round or 1:.2f} |")


if __name__ == "__main__":
    main()
