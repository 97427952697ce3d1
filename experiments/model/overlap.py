"""Measure how much of each passage also stands in the training text.

The split is by package and drops equal files, but packages quote each other. For each passage this
counts the runs of eight consecutive non-blank lines that occur anywhere in the training text.

    python overlap.py CORPUS PASSAGES_DIR --json overlap.json
"""

from __future__ import annotations

import argparse
import json
import lzma
from pathlib import Path

import numpy as np

RUN_LINES = 8


def runs(text: str) -> np.ndarray:
    """Return one 64-bit hash for each run of lines, indentation and blank lines ignored."""
    lines = (line.strip() for line in text.splitlines())
    hashes = np.fromiter((hash(line) for line in lines if line), np.int64).view(np.uint64)
    count = max(len(hashes) - RUN_LINES + 1, 0)
    mixed = np.zeros(count, np.uint64)
    for offset in range(RUN_LINES):
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + hashes[offset : offset + count]
    return mixed


def overlap(corpus: Path, passages: Path) -> dict[str, float]:
    """Return the share of each passage's runs that the training text holds."""
    parts = [np.unique(runs(path.read_text())) for path in sorted((corpus / "train").glob("*.txt"))]
    known = np.unique(np.concatenate(parts))
    shares = {}
    for entry in json.loads((passages / "index.json").read_text()):
        text = lzma.decompress((passages / entry["file"]).read_bytes()).decode()
        shares[entry["id"]] = round(float(np.isin(runs(text), known).mean()), 5)
    return shares


def main() -> None:
    """Parse the command line, measure, write the shares."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("passages", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    shares = overlap(args.corpus, args.passages)
    print(json.dumps(shares, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(shares, indent=1) + "\n")


if __name__ == "__main__":
    main()
