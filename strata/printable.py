"""Make text from elsewhere safe to print: a terminal obeys what it is sent, a person reads it.

A device's name in a table, a prompt's file name or a message in a record may hold an escape
sequence that clears the screen, or a mark that turns the reading direction. Whatever is not ours
passes here on its way out and is shown as Python would spell it.
"""

from __future__ import annotations

import unicodedata

_OBEYED = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Control characters (C1 among them), lone surrogates, and separators that break a line."""
_TURNS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
"""Marks that reorder what stands around them (Unicode Annex 9), and the byte-order mark."""


def printable(text: object, *, keep: str = "") -> str:
    """Return `text` with every character that a terminal would obey spelt out, but for `keep`."""
    plain = str(text)
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(one if one in keep or _is_safe(one) else _spelt(one) for one in plain)


def _is_safe(character: str) -> bool:
    return unicodedata.category(character) not in _OBEYED and character not in _TURNS


def _spelt(character: str) -> str:
    return ascii(character)[1:-1]
