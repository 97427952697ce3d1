"""Cut one long document from each held-out package and ship it as a prompt source.

A document is a run of a package's files in path order, from a file that the hash of the package's
name picks, until it holds 134,500 tokens of the bundled tokenizer. Nothing is repeated or invented.

    python passages.py ARCHIVES CORPUS MODEL_DIR PASSAGES_DIR
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import re
import zipfile
from pathlib import Path

from corpus import archive_of
from tokenizers import Tokenizer

HERE = Path(__file__).parent
TOKENS = 134_500
RESERVE_CHARS = 640_000
LICENCE_FILE = re.compile(r"\.dist-info/(.*/)?(licen[cs]e|copying|notice|authors)[^/]*$", re.I)

README = """\
# Passages

Held-out text for prompts and measurements: {count} documents of more than 134,000 tokens of the
bundled tokenizer. Each is a run of the files of one package in path order, code and
documentation as they are, every file after a line `# file: PATH`. No file of these packages was
in the bundled model's training text, nor any file with the same content. `index.json` lists them;
`split` says whether a document is for searching (`search`) or kept for confirmation (`fresh`).

Made by `experiments/model/passages.py`. The files' text is as published, apart from line ends and
blank lines at a file's start and end. It stays under its own licence, whose text with the copyright
notices stands in `licences/`:

| document | version | licence | split | tokens |
| --- | --- | --- | --- | --- |
{rows}
"""


def cut(name: str, text: str, tokenizer: Tokenizer) -> tuple[str, int]:
    """Return a document's text and its number of tokens."""
    starts = [match.start() for match in re.finditer(r"^# file: ", text, re.M)]
    possible = [at for at in starts if len(text) - at >= RESERVE_CHARS] or starts[:1]
    pick = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    start = possible[pick % len(possible)]
    part = text[start : start + RESERVE_CHARS + 200_000]
    offsets = tokenizer.encode(part).offsets
    if len(offsets) <= TOKENS:
        raise ValueError(f"{name} holds only {len(offsets)} tokens")
    part = part[: part.index("\n", offsets[TOKENS][1]) + 1]
    return part, len(tokenizer.encode(part).ids)


def licence_text(name: str, archives: Path) -> str:
    """Join the licence, notice and author files that a wheel's metadata folder holds."""
    archive = archive_of(name, archives)
    if archive is None:
        raise FileNotFoundError(f"no archive of {name} in {archives}")
    with zipfile.ZipFile(archive) as bag:
        names = [path for path in sorted(bag.namelist()) if LICENCE_FILE.search(path)]
        if not names:
            raise ValueError(f"{archive.name} holds no licence file")
        parts = [f"==== {path}\n\n{bag.read(path).decode().strip()}\n" for path in names]
    return "\n".join(parts)


def build(archives: Path, corpus: Path, model: Path, target: Path) -> None:
    """Write the documents, their licences, their index and the README."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    (target / "licences").mkdir(parents=True, exist_ok=True)
    manifest = json.loads((HERE / "manifest.json").read_text())
    sources = sorted((s for s in manifest if s["split"] == "heldout"), key=lambda s: s["package"])
    index, rows = [], []
    for number, source in enumerate(sources):
        name = source["package"]
        text, num_tokens = cut(name, (corpus / "heldout" / f"{name}.txt").read_text(), tokenizer)
        raw = text.encode()
        (target / "licences" / f"{name}.txt").write_text(licence_text(name, archives))
        packed = lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME)
        (target / f"{name}.txt.xz").write_bytes(packed)
        entry = {
            "id": name,
            "file": f"{name}.txt.xz",
            "package": name,
            "version": source["version"],
            "licence": source["licence"],
            "sha256": hashlib.sha256(raw).hexdigest(),
            "characters": len(text),
            "tokens": num_tokens,
            "split": ("search", "fresh")[number % 2],
        }
        index.append(entry)
        rows.append(
            f"| {name} | {entry['version']} | {entry['licence']} | {entry['split']} "
            f"| {num_tokens:,} |"
        )
    (target / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    (target / "README.md").write_text(README.format(count=len(index), rows="\n".join(rows)))
    size = sum(path.stat().st_size for path in target.rglob("*.*"))
    print(f"{len(index)} documents, {size:,} bytes")


def main() -> None:
    """Parse the command line and build."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("archives", type=Path, help="what `corpus.py fetch` brought")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("model", type=Path, help="folder with the bundled tokenizer")
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    build(args.archives, args.corpus, args.model, args.target)


if __name__ == "__main__":
    main()
