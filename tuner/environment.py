"""What machine, software and engine the numbers come from.

`EngineFacts` is what a trial process reports before its first pair: the study's key and the
table's fingerprint are made from it. `host_facts` is recorded beside the numbers and compared by
no one; it is there for the person who wonders.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from strata import __version__

PACKAGE = Path(__file__).resolve().parent.parent
AUTO_FACT = "mtp_window_auto"
"""What of a study's environment says which window ``auto`` was; where it is missing, the ring."""
_APART = {"cli", "server", "tuner", "models", "data"}
"""Folders of the package that no measured number passes through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What a trial process says of itself."""

    device: str
    model_hash: str
    kv_dtype: str
    has_mtp: bool
    max_positions: int | None
    default_ring_cells: int
    passages_sha256: str
    engine_version: str
    engine_commit: str | None
    worker: str
    environment: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> EngineFacts:
        """Rebuild facts from `to_json`."""
        return cls(**value)


def host_facts() -> dict[str, Any]:
    """Return what the operating system tells of this machine; nothing here is required."""
    return {
        "os": platform.platform(),
        "python": platform.python_version(),
        "cpu": cpu_name(),
        "cpus_usable": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "cpu_governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "load_average_1min": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "memory_bytes": _memory_bytes(),
    }


def machine_id() -> str:
    """Return an anonymous name of this machine: pairs never straddle two."""
    seed = _read("/etc/machine-id") or ""
    return hashlib.sha256(f"{seed}/{platform.node()}".encode()).hexdigest()[:12]


def cpu_name() -> str:
    """Return the processor's name as the system gives it."""
    for line in (_read("/proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@lru_cache(maxsize=1)
def engine_version() -> str:
    """Return the version with a digest of the engine's sources: ``0.1.0+1f2e3d4c``.

    An edited engine is another engine, whatever its version says, and starts another study.
    """
    hashed = hashlib.sha256()
    for path in sorted(_sources(PACKAGE / "strata" if _is_checkout() else PACKAGE)):
        hashed.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return f"{__version__}+{hashed.hexdigest()[:8]}"


@lru_cache(maxsize=1)
def engine_commit() -> str | None:
    """Return the commit of the checkout that the package runs from, None where there is none."""
    if not _is_checkout():
        return None
    command = ["git", "-C", str(PACKAGE), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _is_checkout() -> bool:
    """Return whether this file is reached through the link of a source tree, not a wheel."""
    return (PACKAGE / "strata" / "tuner").is_symlink()


def _sources(root: Path) -> list[Path]:
    found = list(root.glob("*.py"))
    for folder in root.iterdir():
        if folder.is_dir() and folder.name not in _APART:
            found += folder.rglob("*.py")
    return found


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
