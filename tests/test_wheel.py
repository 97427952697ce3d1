"""The wheel: what ships is in it, and it works where the checkout is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def _run(*words: str, cwd: Path, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel built from a copy of what git tracks, so that no build folder is left here."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    for name in listed.decode().split("\0"):
        origin, target = ROOT / name, source / name
        if not name or name.startswith(("tests/", "experiments/")) or not os.path.lexists(origin):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if origin.is_symlink():
            target.symlink_to(origin.readlink())
        else:
            shutil.copyfile(origin, target)
    _run(
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        str(source),
        cwd=source,
    )
    return next(out.glob("strata-*.whl"))


def test_the_wheel_holds_everything_that_ships(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = {
        f"strata/{path.relative_to(ROOT)}"
        for path in (ROOT / "data").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert shipped <= names
    assert {"strata/tuner/plan.py", "strata/models/decide.py", "strata/py.typed"} <= names
    assert not [name for name in names if name.startswith(("tuner/", "models/", "tests/"))]


def test_it_works_from_a_folder_with_its_own_models_and_tuner(wheel: Path, tmp_path: Path) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    _run("-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel), cwd=tmp_path)
    for name in ("models.py", "tuner.py"):
        (work / name).write_text("raise AssertionError('the wrong module was imported')\n")
    where = "import strata, strata.tuner.plan, strata.models.decide; print(strata.__file__)"
    assert _run("-c", where, cwd=work, PYTHONPATH=str(site)).startswith(str(site))
    main = "from strata.cli.entry import main; main()"
    text = _run(
        "-c",
        main,
        "generate",
        "--passage",
        "64:1",
        "--max-new",
        "4",
        "--json",
        "-",
        cwd=work,
        PYTHONPATH=str(site),
    )
    assert '"token_hash"' in text
    shown = _run(
        "-c",
        main,
        "policy",
        "backtest",
        str(site / "strata/data/seed/decode_by_ring.csv"),
        "--kv-resident",
        "49152",
        "--kv-ring-default",
        "32768",
        cwd=work,
        PYTHONPATH=str(site),
    )
    assert "-9.1 %" in shown
