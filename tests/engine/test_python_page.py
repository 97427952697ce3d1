"""The example of docs/python.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from strata import env

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_example_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (env.KV_RING_POLICY, env.KV_RING_ADAPT, env.KV_RING_TABLE):
        monkeypatch.delenv(name, raising=False)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(example, str(PAGE), "exec"), {})
    assert capsys.readouterr().out.startswith("KV ring fixed: 2048")
