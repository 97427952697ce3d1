"""Every variable of strata's own is known by name, and what is misspelt is said."""

from __future__ import annotations

import re
from pathlib import Path

from strata import env

ROOT = Path(__file__).parent.parent


def test_every_variable_that_the_code_reads_is_listed() -> None:
    read = {
        name
        for folder in ("strata", "tuner", "models")
        for path in (ROOT / folder).rglob("*.py")
        if not path.is_relative_to(ROOT / "strata" / "data")
        for name in re.findall(r"\bSTRATA_[A-Z_]+", path.read_text(encoding="utf-8"))
        if name != env.PREFIX
    }
    assert read == set(env.VARIABLES)


def test_a_misspelt_one_is_said_with_the_nearest() -> None:
    environ = dict.fromkeys(env.VARIABLES, "") | {"PATH": "", "_STRATA_COMPLETE": ""}
    assert env.misspelt_variables(environ) == []
    said = env.misspelt_variables(environ | {"STRATA_KV_RING_TABEL": "x", "STRATA_": ""})
    assert said[1].endswith("did you mean STRATA_KV_RING_TABLE?")
    assert "there are STRATA_KV_RING_POLICY, STRATA_KV_RING_ADAPT" in said[0]
