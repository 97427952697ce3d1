"""What kernels take of a GPU's shared memory, for any model; compiled without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
LIMIT_BYTES = 200 << 10
"""An H100 or H200 gives a program 227 KiB; another Triton may take some more."""
BUNDLED: dict[str, set[str]] = {
    "_add_weighted": {"BLOCK=2048 warps=8 stages=3"},
    "_append": {"R=16 D=64 warps=4 stages=3"},
    "_attend_splits": {
        "M=16 N=128 D=64 warps=4 stages=2",
        "M=64 N=64 D=64 warps=4 stages=2",
    },
    "_attend_window": {"M=16 D=64 warps=4 stages=3"},
    "_bear": {"BLOCK=512 SLOTS=1024 warps=4 stages=3"},
    "_bound": {"C=16 D=64 warps=1 stages=3"},
    "_choose": {"GROUPS=8 TILES=16 OUT=256 warps=8 stages=3"},
    "_cut": {"BLOCK=8192 warps=32 stages=3"},
    "_down": {"E=64 M=64 N=128 I=64 warps=4 stages=3"},
    "_embed": {"BLOCK=256 warps=4 stages=3"},
    "_flash": {"M=128 N=64 D=64 STAGES=3 warps=8 stages=3"},
    "_gate_up": {"E=64 M=64 N=64 H=64 warps=4 stages=3"},
    "_heads": {"M=64 H=64 HALF=32 warps=4 stages=3"},
    "_join": {"BLOCK=256 HIDDEN=256 OUT=16 warps=4 stages=3"},
    "_norm": {"M=8 H=256 warps=4 stages=3"},
    "_pick": {"BLOCK=256 warps=4 stages=3"},
    "_product": {
        "M=64 N=64 H=64 warps=4 stages=3",
        "WIDTH=16 HIDDEN=256 BLOCK=256 warps=2 stages=3",
    },
    "_project": {
        "HIDDEN=256 HALF=32 warps=8 stages=3",
        "VOCAB=32 HIDDEN=256 warps=4 stages=3",
    },
    "_project_out": {
        "LANES=128 D=32 OUT=256 BLOCK=256 EXPERTS=16 CHUNK=256 warps=8 stages=3",
        "LANES=128 D=32 OUT=256 BLOCK=256 EXPERTS=64 CHUNK=256 warps=8 stages=3",
    },
    "_reduce_splits": {"S=256 D=16 warps=8 stages=3"},
    "_resolve": {"BLOCK=512 SWEEP=256 MISSES=256 SLOTS=1024 warps=8 stages=3"},
    "_route": {
        "BLOCK=64 HIDDEN=16 warps=1 stages=3",
        "M=64 E=64 H=64 warps=4 stages=3",
    },
    "_score_rows": {"BLOCK=64 D=64 G=8 PER=2 warps=4 stages=3"},
    "_sort": {"BLOCK=4096 warps=4 stages=3"},
    "_turns": {"M=32 HALF=32 warps=4 stages=3"},
    "_widen": {"R=8 D=64 warps=1 stages=3"},
}
"""Blocks of the bundled model's kernels: its bits and its speed were measured with these."""


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.kernels.shared_memory"],
        capture_output=True,
        text=True,
        env=env,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_kernel_fits_whatever_the_model(found: list[dict[str, Any]]) -> None:
    assert len({json.dumps(one["geometry"]) for one in found}) >= 4
    large = [(one["kernel"], one["shared"], one["geometry"]) for one in found]
    assert [one for one in large if one[1] > LIMIT_BYTES] == []


def test_the_bundled_model_has_the_blocks_that_were_measured(found: list[dict[str, Any]]) -> None:
    first = found[0]["geometry"]
    got: dict[str, set[str]] = {}
    for one in found:
        if one["geometry"] == first:
            sizes = [
                f"{name.removeprefix('BLOCK_')}={value}"
                for name, value in one["sizes"].items()
                if name.startswith("BLOCK") or name in ("LANES", "PER", "STAGES", "GROUPS", "TILES")
            ]
            got.setdefault(one["kernel"], set()).add(
                " ".join([*sizes, f"warps={one['warps']}", f"stages={one['stages']}"])
            )
    assert {kernel: got[kernel] for kernel in BUNDLED} == BUNDLED
