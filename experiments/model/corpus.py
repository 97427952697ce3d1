"""Build the training and held-out text from named packages.

The packages stand in `packages.toml`. Their archives (wheels or source archives) are fetched by
the ordinary `pip download`, read without being run, filtered, and joined to one document a
package: its files in path order, each after a line `# file: PATH`. The held-out packages are read
first, so a file that both sides hold stays out of the training text.

    python corpus.py fetch ARCHIVES
    python corpus.py build ARCHIVES OUT
"""

from __future__ import annotations

import argparse
import email
import hashlib
import json
import platform
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
SUFFIXES = {".py", ".pyi", ".md", ".rst", ".txt"}
FOREIGN = re.compile(
    r"(^|/)(_?vendor(ed)?|third_?party(_files)?|externals?|extern|licenses?|locales?)(/|$)", re.I
)
NOT_PROSE = re.compile(r"(licen[cs]e|copying|notice|authors|requirements|top_level|sources)", re.I)
MIN_CHARS, MAX_CHARS, MAX_LINE_CHARS = 400, 400_000, 400
PACKAGE_CHARS = 8_000_000
PERMISSIVE = re.compile(
    r"\b(MIT|BSD|0BSD|Apache|PSF|Python Software Foundation|ISC|HPND|Unlicense)\b", re.I
)
RESTRICTED = re.compile(r"GPL|MPL|Mozilla|General Public|EUPL|proprietary|commercial", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Describe one package as the manifest lists it."""

    package: str
    version: str
    licence: str
    split: str
    num_files: int
    num_chars: int


def packages() -> dict[str, list[str]]:
    """Read the two lists of package names and check that they are disjoint."""
    lists = tomllib.loads((HERE / "packages.toml").read_text())
    both = set(lists["train"]) & set(lists["heldout"])
    if both:
        raise ValueError(f"packages on both sides of the split: {sorted(both)}")
    return lists


def fetch(archives: Path) -> None:
    """Download the newest archive of each named package, without its dependencies."""
    archives.mkdir(parents=True, exist_ok=True)
    lists = packages()
    for name in lists["heldout"] + lists["train"]:
        if name == "python" or archive_of(name, archives):
            continue
        wanted = "torch==2.13.0" if name == "torch" else name
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--only-binary=:all:", "-d", str(archives), wanted], check=True)


def archive_of(name: str, archives: Path) -> Path | None:
    """Find the archive of a package by its normalised name."""
    wanted = re.sub(r"[-_.]+", "_", name).lower()
    for path in sorted(archives.iterdir()):
        stem = re.split(r"-\d", path.name, maxsplit=1)[0]
        if re.sub(r"[-_.]+", "_", stem).lower() == wanted:
            return path
    return None


def members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (path, content) of the text files of an archive in path order."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as bag:
            for name in sorted(bag.namelist()):
                if Path(name).suffix in SUFFIXES or name.endswith(".dist-info/METADATA"):
                    yield name, bag.read(name)
        return
    with tarfile.open(archive) as tape:
        for item in sorted(tape.getmembers(), key=lambda entry: entry.name):
            inner = item.name.partition("/")[2]
            content = tape.extractfile(item) if item.isfile() else None
            if content and (Path(inner).suffix in SUFFIXES or inner == "PKG-INFO"):
                yield inner, content.read()


def standard_library() -> Iterator[tuple[str, bytes]]:
    """Yield (path, content) of the standard library's sources in path order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        inner = path.relative_to(root)
        if inner.parts[0] not in {"site-packages", "lib2to3", "idlelib"}:
            yield inner.as_posix(), path.read_bytes()


def licence_of(metadata: bytes) -> tuple[str, str]:
    """Return (version, licence) of a package's metadata; raise if the licence is not permissive."""
    fields = email.message_from_bytes(metadata)
    classifiers = [
        entry.rpartition(" :: ")[2]
        for entry in fields.get_all("Classifier", [])
        if entry.startswith("License :: OSI Approved ::")
    ]
    text = (fields.get("License-Expression") or "; ".join(classifiers)).strip()
    if not text:
        text = (fields.get("License") or "").strip().partition("\n")[0][:80]
    if RESTRICTED.search(text) or not PERMISSIVE.search(text):
        raise ValueError(
            f"{fields['Name']} {fields['Version']}: licence {text!r} is not permissive"
        )
    return fields["Version"], text


def usable(path: str, content: bytes) -> str | None:
    """Return the text of a file that is worth reading, else None."""
    if FOREIGN.search(path) or ".dist-info/" in path or ".egg-info/" in path:
        return None
    if path.endswith(".txt") and NOT_PROSE.search(path):
        return None
    if not MIN_CHARS <= len(content) <= MAX_CHARS:
        return None
    try:
        text = content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        return None
    if "\0" in text or max(map(len, text.splitlines()), default=0) > MAX_LINE_CHARS:
        return None
    return text.strip("\n") + "\n"


def read_package(name: str, split: str, archives: Path, seen: set[bytes]) -> tuple[Source, str]:
    """Join one package's files to a document; `seen` grows by the hashes of what was taken."""
    version, licence = platform.python_version(), "PSF-2.0"
    archive = archive_of(name, archives)
    if name != "python" and archive is None:
        raise FileNotFoundError(f"no archive of {name} in {archives}: run `corpus.py fetch` first")
    parts: list[str] = []
    num_chars = 0
    for path, content in standard_library() if archive is None else members(archive):
        if path.count("/") < 2 and path.endswith((".dist-info/METADATA", "PKG-INFO")):
            version, licence = licence_of(content)
            continue
        text = usable(path, content)
        if text is None or num_chars > PACKAGE_CHARS:
            continue
        digest = hashlib.sha256("".join(text.split()).encode()).digest()
        if digest not in seen:
            seen.add(digest)
            parts.append(f"# file: {path}\n{text}\n")
            num_chars += len(parts[-1])
    source = Source(
        package=name,
        version=version,
        licence=licence,
        split=split,
        num_files=len(parts),
        num_chars=num_chars,
    )
    return source, "".join(parts)


def build(archives: Path, out: Path) -> None:
    """Write OUT/{heldout,train}/PACKAGE.txt and the manifest."""
    seen: set[bytes] = set()
    manifest = []
    for split in ("heldout", "train"):
        folder = out / split
        folder.mkdir(parents=True, exist_ok=True)
        for name in packages()[split]:
            source, text = read_package(name, split, archives, seen)
            (folder / f"{name}.txt").write_text(text)
            manifest.append(asdict(source))
            print(f"{split} {name} {source.version} {source.licence} {source.num_chars:,}")
    for split in ("heldout", "train"):
        chars = sum(entry["num_chars"] for entry in manifest if entry["split"] == split)
        print(f"{split}: {chars:,} characters")
    (HERE / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def main() -> None:
    """Parse the command line and run one step."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("step", choices=["fetch", "build"])
    parser.add_argument("archives", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    args = parser.parse_args()
    if args.step == "fetch":
        fetch(args.archives)
    else:
        build(args.archives, args.out or args.archives.parent)


if __name__ == "__main__":
    main()
