"""A prompt is its bytes, read as UTF-8 wherever it comes from and whatever the locale."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from generate_samples import COMMAND, generate, one_sentence, refused, stats
from hypothesis import given, settings
from hypothesis import strategies as st

from strata.cli.prompt_text import prompt_text
from strata.lm import LanguageModel
from tests.conftest import TINY

BARE = {
    "LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
}  # fmt: skip
PROMPT = "naïve — 漢字\r\nxé\r"


def test_a_file_is_read_as_it_is(tiny: LanguageModel, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(PROMPT.encode())
    count = len(tiny.tokenizer.encode(PROMPT))
    assert count != len(tiny.tokenizer.encode(PROMPT.replace("\r\n", "\n")))
    for words, how in (
        (["--file", file], {}),
        ([], {"stdin": PROMPT.encode()}),
        ([PROMPT], {}),
    ):
        assert stats(*words, "--max-new", 1, **how)["prompt_tokens"] == count


@settings(max_examples=25)
@given(text=st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_text_comes_back_from_a_file(text: str, tmp_path_factory: pytest.TempPathFactory):
    file = tmp_path_factory.getbasetemp() / "any.txt"
    file.write_bytes(text.encode())
    assert prompt_text(None, file, None) == text


@pytest.mark.parametrize("encoding", [None, "latin-1"])
def test_without_a_utf_8_locale(encoding: str | None, tiny: LanguageModel, tmp_path: Path) -> None:
    """From the command line and from standard input; what is printed never fails."""
    assert COMMAND is not None
    words = [COMMAND, "generate", "--model", str(TINY), "--max-new", "60", "--temperature", "9"]
    words += ["--ignore-eos", "--json", "run.json", "--stop", "漢漢漢"]
    words += [PROMPT] if encoding is None else []
    named = {} if encoding is None else {"PYTHONIOENCODING": encoding}
    done = subprocess.run(
        words, input=PROMPT.encode(), capture_output=True, check=False, timeout=120,
        env={**os.environ, **BARE, **named}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    result = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert not result["text"].isascii()
    assert done.stdout == (result["text"] + "\n").encode(encoding or "utf-8", "replace")
    assert result["prompt_tokens"] == len(tiny.tokenizer.encode(PROMPT))


def test_what_is_no_text_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "p.bin"
    file.write_bytes(b"ab\xff")
    assert f"--file: {file} is not UTF-8 text: invalid start byte at byte 2" in refused(
        "--file", file
    )
    assert "standard input is not UTF-8 text" in refused(stdin=b"a\xe9")
    assert "--stop is not UTF-8 text" in refused("x", "--stop", "\udce9")
    assert "the prompt is not UTF-8 text" in refused("\udce9")


def test_a_closed_standard_input() -> None:
    command = f"{COMMAND} generate --model {TINY} <&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    said = one_sentence(done.returncode, done.stdout, done.stderr)
    assert "standard input is closed" in said
    assert generate("x", "--max-new", 1).exit_code == 0
