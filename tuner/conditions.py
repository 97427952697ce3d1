"""What a machine was like while a run was timed: recorded beside the figures, judged by no one.

What the driver of a GPU tells comes through NVML. Where there is none, or it does not tell, the
key is left out and nothing fails.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strata.tuner.record import TrialRecord

MILLI = 1000
RANGES = (
    ("sm_clock_mhz", "GPU clock", "MHz"),
    ("power_w", "GPU power", "W"),
    ("temperature_c", "GPU temperature", "C"),
    ("other_gpu_processes", "others on the GPU", ""),
)
"""What is summarised by its smallest and largest value: column, name, unit."""


def conditions(gpu_uuid: str | None = None) -> dict[str, Any]:
    """Return what is known at this moment of the machine and of one GPU; keys carry their units.

    `gpu_uuid` names the GPU as the driver does, ``GPU-...``: numbers differ between what CUDA, the
    driver and a container count.
    """
    found: dict[str, Any] = {"host": platform.node()}
    if hasattr(os, "getloadavg"):
        found["load_average_1min"] = os.getloadavg()[0]
    if gpu_uuid is not None:
        found |= gpu_conditions(gpu_uuid)
    return found


def gpu_conditions(uuid: str) -> dict[str, Any]:
    """Return clocks, power, temperature and neighbours of one GPU; {} where NVML is not there."""
    nvml = _nvml()
    if nvml is None:
        return {}
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        return {}
    return dict(_facts(nvml, handle))


def summarise_conditions(records: Sequence[TrialRecord]) -> list[tuple[str, str]]:
    """Return what the runs of a study say of their machines, as (name, value)."""
    found = [record.conditions or {} for record in records]
    hosts = sorted({str(one["host"]) for one in found if "host" in one})
    machines = len({record.worker for record in records})
    rows = [("machines", f"{machines}" + (f" ({', '.join(hosts)})" if hosts else ""))]
    for key, name, unit in RANGES:
        if values := [one[key] for one in found if key in one]:
            rows.append((name, f"{min(values):.0f} to {max(values):.0f} {unit}".rstrip()))
    limits = Counter(limit for one in found for limit in one.get("clock_limits", ()))
    if limits:
        told = sum("clock_limits" in one for one in found)
        words = (f"{name} in {count} of {told} runs" for name, count in sorted(limits.items()))
        rows.append(("clocks limited by", ", ".join(words)))
    return rows


def _facts(nvml: Any, handle: Any) -> Iterator[tuple[str, Any]]:
    """Yield what this driver and this card tell; each question may be refused by itself."""

    def milli(function: Any) -> Callable[[], float]:
        return lambda: function(handle) / MILLI

    questions: dict[str, Callable[[], Any]] = {
        "gpu": lambda: _text(nvml.nvmlDeviceGetName(handle)),
        "gpu_uuid": lambda: _text(nvml.nvmlDeviceGetUUID(handle)),
        "gpu_driver": lambda: _text(nvml.nvmlSystemGetDriverVersion()),
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "power_w": milli(nvml.nvmlDeviceGetPowerUsage),
        "power_limit_w": milli(nvml.nvmlDeviceGetEnforcedPowerLimit),
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "clock_limits": lambda: _clock_limits(nvml, handle),
        "other_gpu_processes": lambda: _num_others(nvml, handle),
    }
    for name, ask in questions.items():
        # An older binding lacks the function, an older card or a container refuses the answer, and
        # a name need not be UTF-8: no measurement fails for that.
        with suppress(nvml.NVMLError, AttributeError, UnicodeDecodeError):
            yield name, ask()


def _clock_limits(nvml: Any, handle: Any) -> list[str]:
    """Return what holds the clocks down, in NVML's words without their prefix."""
    bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    prefix = "nvmlClocksThrottleReason"
    return sorted(
        name.removeprefix(prefix)
        for name in dir(nvml)
        if name.startswith(prefix)
        and isinstance(value := getattr(nvml, name), int)
        and value
        and bits & value == value
        and not name.endswith("All")
    )


def _num_others(nvml: Any, handle: Any) -> int:
    """Return how many other processes compute on the GPU.

    Within a container NVML may count this process under a number that it does not know; the
    largest answer is then one too many, never one too few.
    """
    running = {process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    return len(running - {os.getpid()})


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


@cache
def _nvml() -> Any:
    """Return the library, initialised for the life of this process, or None where it is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except (ImportError, OSError):
        return None
    except pynvml.NVMLError:  # no driver, no GPU
        return None
    return pynvml
