"""Read environment variables from a mapping, so that a test or a server can bring its own.

Every variable of strata's own is named here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from strata.errors import UsageError

KV_RING_POLICY = "STRATA_KV_RING_POLICY"
KV_RING_ADAPT = "STRATA_KV_RING_ADAPT"
KV_RING_TABLE = "STRATA_KV_RING_TABLE"

PREFIX = "STRATA_"
VARIABLES = (KV_RING_POLICY, KV_RING_ADAPT, KV_RING_TABLE)

ON_WORDS = ("1", "true", "yes", "on")
OFF_WORDS = ("", "0", "false", "no", "off")


def parse_switch(text: str, *, name: str) -> bool:
    """Return whether `text` says on or off; raise UsageError naming `name` for other words."""
    word = text.strip().lower()
    if word in ON_WORDS:
        return True
    if word in OFF_WORDS:
        return False
    raise UsageError(
        f"{name}: {text!r} is neither on ({', '.join(ON_WORDS)}) "
        f"nor off (empty, {', '.join(OFF_WORDS[1:])})"
    )


def read_switch(environ: Mapping[str, str], name: str) -> bool:
    """Return the on/off variable `name`, off where unset; raise UsageError for other words."""
    return parse_switch(environ.get(name, ""), name=name)


def read_text(environ: Mapping[str, str], name: str) -> str | None:
    """Return the variable `name` without surrounding blanks, None where it is unset or empty."""
    return environ.get(name, "").strip() or None


def misspelt_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable that begins like strata's own and is none of them."""
    return [
        f"{name} is no variable of strata and says nothing{nearest(name, VARIABLES)}"
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in VARIABLES
    ]


def nearest(word: str, words: Iterable[str]) -> str:
    """Return ``; did you mean X?`` for the nearest of `words`, else the list of them."""
    known = list(words)
    close = get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known) or 'none'}"
