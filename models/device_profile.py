"""Read what is known of a device that nothing was measured on: memory, bandwidths, launch time."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from strata.errors import UsageError
from strata.json_text import parse_json, parse_toml

BUILT_IN = Path(__file__).parent.parent / "data" / "profiles"
KINDS = ("cuda", "cpu")
NUMBERS = {
    "vram_bytes": "bytes of device memory",
    "device_bytes_per_s": "bytes a second that the device reads of its own memory",
    "bus_bytes_per_s": "bytes a second of scattered pages out of host memory",
    "round_us": "microseconds of a round outside of its launches: the host's part",
    "launch_us": "microseconds of a launch in a captured round, whatever it computes",
    "scan_page_us": "microseconds a page of one layer's selection takes, 0 where unknown",
}
"""Every number of a profile, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """A device in a few numbers; NUMBERS says what each of them is."""

    name: str
    kind: str
    vram_bytes: int
    device_bytes_per_s: float
    bus_bytes_per_s: float
    round_us: float
    launch_us: float
    scan_page_us: float = 0.0

    @property
    def kv_dtype(self) -> str:
        """Return the numbers in which the engine keeps K/V there."""
        return "bfloat16" if self.kind == "cuda" else "float32"


def load_profile(name: str) -> DeviceProfile:
    """Return a built-in profile by name (``h200``), or that of a TOML or JSON file.

    Raises UsageError that names the file and the key where it is no profile.
    """
    built_in = BUILT_IN / f"{name}.toml"
    path = built_in if re.fullmatch(r"[\w-]+", name) and built_in.is_file() else Path(name)
    try:
        content = path.read_bytes()
        values = parse_json(content) if path.suffix == ".json" else parse_toml(content)
    except OSError as error:
        known = ", ".join(sorted(one.stem for one in BUILT_IN.glob("*.toml")))
        raise UsageError(
            f"device profile {name!r} cannot be read ({error.strerror}); give a TOML or JSON "
            f"file or one of: {known}"
        ) from None
    except ValueError as error:
        raise UsageError(f"device profile {name}: {error}") from None
    try:
        return _profile(values)
    except UsageError as error:
        raise UsageError(f"device profile {name}: {error}") from None


def _profile(values: Any) -> DeviceProfile:
    if not isinstance(values, dict):
        raise UsageError("it holds no table of keys")
    known = [field.name for field in fields(DeviceProfile)]
    if unknown := sorted(set(values) - set(known)):
        raise UsageError(f"unknown key {unknown[0]!r}; known keys: {', '.join(known)}")
    if missing := [key for key in known if key not in values and key != "scan_page_us"]:
        raise UsageError(f"key {missing[0]!r} is missing: {NUMBERS.get(missing[0], 'a text')}")
    if not isinstance(values["name"], str) or not values["name"]:
        raise UsageError("key 'name' is a text that names the device")
    if values["kind"] not in KINDS:
        raise UsageError(f"key 'kind' is {values['kind']!r}; it is one of {', '.join(KINDS)}")
    for key, words in NUMBERS.items():
        _check_number(key, values.get(key, 0.0), words)
    return DeviceProfile(**{**values, "vram_bytes": int(values["vram_bytes"])})


def _check_number(key: str, value: object, words: str) -> None:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else -1
    if not math.isfinite(number) or number < 0:
        raise UsageError(f"key {key!r} is {value!r}; it is {words}")
    if number == 0 and key != "scan_page_us":
        raise UsageError(f"key {key!r} is 0; it is {words}")
