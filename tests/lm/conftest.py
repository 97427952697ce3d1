"""The fixture of every test that damages a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
from lm_samples import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a copy of the stand-in checkpoint."""
    return Folder(tmp_path / "model")
