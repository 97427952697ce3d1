"""Read environment variables from a mapping, so that a test or a server can bring its own.

Every variable of strata's own is named here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping

from strata.errors import UsageError

KV_RING_POLICY = "STRATA_KV_RING_POLICY"
KV_RING_ADAPT = "STRATA_KV_RING_ADAPT"
KV_RING_TABLE = "STRATA_KV_RING_TABLE"

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
