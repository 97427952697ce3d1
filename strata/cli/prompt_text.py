"""Read a prompt's text from where the user has it, byte for byte, as UTF-8 whatever the locale."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from strata.errors import UsageError


def prompt_text(prompt: str | None, file: Path | None, passage: str | None) -> str | None:
    """Return the prompt's text, None where a passage is asked for."""
    given = [
        name
        for name, value in (("PROMPT", prompt), ("--file", file), ("--passage", passage))
        if value is not None
    ]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} all name a prompt; give one")
    if passage is not None:
        return None
    if file is not None:
        text = _decode(file.read_bytes(), f"--file: {file}")
    elif prompt is None or prompt == "-":
        text = _decode(_read_stdin(asked_for=prompt is not None), "standard input")
    else:
        text = typed_text(prompt, "the prompt")
    if not text:
        raise UsageError("the prompt is empty; give at least one character")
    return text


def typed_text(word: str, name: str) -> str:
    """Return a word of the command line as the UTF-8 text that it is.

    Python decodes the command line by the locale, which in a bare environment is ASCII; the bytes
    that were typed are kept, and those are read.
    """
    try:
        data = os.fsencode(word)
    except UnicodeEncodeError:  # a word of a configuration file that the locale cannot spell
        data = word.encode("utf-8", "surrogateescape")
    return _decode(data, name)


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name} is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from None


def _read_stdin(*, asked_for: bool) -> bytes:
    """Return all of standard input; without `asked_for` a terminal is not waited for."""
    if sys.stdin is None:
        raise UsageError("no prompt: standard input is closed; give PROMPT, --file or --passage")
    if not asked_for and sys.stdin.isatty():
        raise UsageError("no prompt: give PROMPT, --file, --passage, or pipe one in")
    return sys.stdin.buffer.read()
