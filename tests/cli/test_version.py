"""`strata --version` says what a report of a fault needs."""

from __future__ import annotations

import torch
from typer.testing import CliRunner

from strata import __version__
from strata.cli.main import app
from strata.device import device_name, resolve_device
from strata.tuner.environment import engine_version


def test_version_build_device_and_libraries() -> None:
    lines = CliRunner().invoke(app, ["--version"]).stdout.splitlines()
    build = engine_version().partition("+")[2]
    assert lines[0].startswith(f"strata {__version__}, build {build}, commit ")
    device = resolve_device("auto")
    assert lines[1] == f"device {device.type}: {device_name(device)}"
    assert lines[2].startswith(f"torch {torch.__version__}, triton ")
