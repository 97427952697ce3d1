"""The reference page is what the commands say of themselves, and names every switch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_reference_page_is_up_to_date() -> None:
    script = ROOT / "docs" / "generate_reference.py"
    done = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert done.returncode == 0, "run `make docs`"


def test_every_environment_variable_is_documented() -> None:
    from strata import env

    pages = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("docs/*.md"))
    names = [value for value in vars(env).values() if str(value).startswith("STRATA_")]
    assert len(names) >= 3
    assert [name for name in names if name not in pages] == []
