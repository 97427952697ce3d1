"""JSON and TOML that no one should have written end as one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from strata.cli.main import app
from strata.json_text import MAX_DEPTH, parse_json, parse_toml

GOLDEN = Path(__file__).parent / "golden" / "ring-policy-1.json"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
)  # fmt: skip


@settings(max_examples=30)
@given(value=VALUES)
def test_every_other_value_comes_back(value: object) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 980, 5_000, 200_000])
def test_what_nests_too_deep(depth: int) -> None:
    for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        with pytest.raises(ValueError, match="nests deeper than 64 levels"):
            parse_json(text.encode())
    if depth <= 5_000:
        with pytest.raises(ValueError, match="nests deeper than 64 levels"):
            parse_toml(f"x = {'[' * depth}{']' * depth}".encode())
    assert parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)


def test_numbers_that_are_none() -> None:
    with pytest.raises(ValueError, match="a whole number of 5000 digits"):
        parse_json(b"9" * 5_000)
    with pytest.raises(ValueError, match="a whole number of thousands of digits"):
        parse_toml(b"x = " + b"9" * 5_000)
    with pytest.raises(ValueError, match="NaN is no JSON number"):
        parse_json(b"[NaN]")


@pytest.mark.parametrize("inner", ["[" * 980 + "]" * 980, "[" * 5_000 + "]" * 5_000, "9" * 5_000])
@pytest.mark.parametrize(
    "line",
    [
        "policy show", "policy validate", "policy explain --depth 1K --policy learned --table",
        "policy diff {golden}", "policy merge --out out.json {golden}",
        "generate x --kv-ring-policy learned --kv-ring-table",
        "model predict", "model predict --device-profile",
    ],
)  # fmt: skip
def test_a_command_says_one_sentence(line: str, inner: str, tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    text = GOLDEN.read_text(encoding="utf-8").rstrip().removesuffix("}")
    file.write_text(f'{text}, "provenance": {{"more": {inner}}}}}', encoding="utf-8")
    words = [word.format(golden=GOLDEN) for word in line.split()]
    result = CliRunner().invoke(app, [*words, str(file)])
    assert result.exit_code == 2, result.exception
    assert "digits" in result.stderr or "nests deeper" in result.stderr
    assert len(result.stderr.splitlines()) == 1
