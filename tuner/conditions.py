"""What a machine was like while a run was timed: recorded beside the figures, judged by no one.

What the driver of a GPU tells comes through NVML. Where there is none, or it does not tell, the
key is left out and nothing fails.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

MILLI = 1000


def conditions(device: str) -> dict[str, Any]:
    """Return what is known at this moment of the machine and, for ``cuda...``, of its GPU.

    `device` is that of the process that calls, as torch counts it. Costs about a millisecond; the
    keys carry their units.
    """
    found: dict[str, Any] = {"host": platform.node()}
    if hasattr(os, "getloadavg"):
        found["load_average_1min"] = os.getloadavg()[0]
    if device.startswith("cuda"):
        found |= gpu_conditions(device)
    return found


def gpu_conditions(device: str) -> dict[str, Any]:
    """Return clocks, power, temperature and neighbours of one GPU; {} where NVML is not there."""
    with _nvml() as nvml:
        if nvml is None:
            return {}
        try:
            handle = _handle(nvml, device)
        except (nvml.NVMLError, ValueError):
            return {}
        return dict(_facts(nvml, handle))
    return {}


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
        # An older binding lacks the function, an older card or a container refuses the answer.
        with suppress(nvml.NVMLError, AttributeError):
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


def _handle(nvml: Any, device: str) -> Any:
    """Return NVML's handle of the GPU that torch calls `device` in this process."""
    index = int(device.partition(":")[2] or 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    name = [part.strip() for part in visible.split(",") if part.strip()][index : index + 1]
    if not name:
        raise ValueError(visible)
    if name[0].isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(name[0]))
    return nvml.nvmlDeviceGetHandleByUUID(name[0])


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


@contextmanager
def _nvml() -> Iterator[Any]:
    """Yield the library, initialised, or None where it or a driver is missing."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
