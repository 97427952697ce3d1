"""Settle which policy and which table a session uses, from its switches and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from strata.env import (
    KV_RING_ADAPT,
    KV_RING_POLICY,
    KV_RING_TABLE,
    read_switch,
    read_text,
)
from strata.errors import UsageError
from strata.policy.asked import Asked
from strata.policy.request import POLICIES, PolicyName
from strata.policy.search import find_table, search_folders
from strata.policy.table import PolicyTable
from strata.policy.table_file import load_table

POLICY_SWITCH = "--kv-ring-policy"
TABLE_SWITCH = "--kv-ring-table"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPolicy:
    """Hold the policy and table that won, who named them, and what to warn about.

    Where a table was looked for and none applies, `table` is None and `table_origin` says where.
    """

    policy: PolicyName
    policy_origin: str
    table: PolicyTable | None = None
    table_origin: str = ""
    warnings: tuple[str, ...] = ()


def parse_policy(text: str, *, name: str) -> PolicyName:
    """Return the policy that `text` spells, in any case; raise UsageError naming `name`."""
    word = text.strip().lower()
    if word not in POLICIES:
        raise UsageError(f"{name}: {text!r} is no ring policy; use one of {', '.join(POLICIES)}")
    return word


def check_policy(
    *, policy: str | None, table: str | Path | None, environ: Mapping[str, str]
) -> None:
    """Raise what `resolve_policy` would raise of the same words, before a model is there."""
    name, _, _ = settle_policy(policy, environ)
    _named_table(name, table, environ)


def resolve_policy(
    *,
    policy: str | None,
    table: str | Path | None,
    environ: Mapping[str, str],
    asked: Asked,
) -> ResolvedPolicy:
    """Return the policy and table of a session; `policy` and `table` are its switches.

    The switch beats ``STRATA_KV_RING_POLICY``, which beats ``STRATA_KV_RING_ADAPT``, which beats
    ``fixed``; a weaker one that says something else is named in one warning, and a misspelt one
    is an error even where it would lose. A table is read only for `learned`, or where a switch
    names one. Raises UsageError for a spelling and TableError for a named table that is no good.
    """
    name, origin, warnings = settle_policy(policy, environ)
    if (read := _named_table(name, table, environ)) is not None:
        named, loaded = read
        if name != "learned":
            warnings.append(f"{TABLE_SWITCH} {named} is not consulted by the {name} policy")
            return ResolvedPolicy(policy=name, policy_origin=origin, warnings=tuple(warnings))
        return ResolvedPolicy(
            policy=name,
            policy_origin=origin,
            table=loaded,
            table_origin=named,
            warnings=tuple(warnings),
        )
    if name != "learned":
        return ResolvedPolicy(policy=name, policy_origin=origin, warnings=tuple(warnings))
    found, broken = find_table(environ, asked)
    if broken:
        warnings.append("passed over while looking for a table: " + "; ".join(broken))
    looked = " and ".join(str(folder) for folder in search_folders(environ))
    return ResolvedPolicy(
        policy=name,
        policy_origin=origin,
        table=found.table if found else None,
        table_origin=str(found.path) if found else looked,
        warnings=tuple(warnings),
    )


def _named_table(
    name: PolicyName, table: str | Path | None, environ: Mapping[str, str]
) -> tuple[str, PolicyTable] | None:
    """Return the path and the table that the switch names, or for `learned` the variable."""
    named, table_name = None if table is None else str(table), TABLE_SWITCH
    if named is None and name == "learned":
        named, table_name = read_text(environ, KV_RING_TABLE), KV_RING_TABLE
    if named is None:
        return None
    if not named.strip():
        raise UsageError(f"{table_name}: an empty path names no table")
    return named, load_table(named)


def settle_policy(
    switch: str | None, environ: Mapping[str, str]
) -> tuple[PolicyName, str, list[str]]:
    """Return the policy that wins, who named it, and at most one warning; no table is read."""
    said: list[tuple[str, PolicyName]] = []
    if switch is not None:
        said.append((POLICY_SWITCH, parse_policy(switch, name=POLICY_SWITCH)))
    if (text := read_text(environ, KV_RING_POLICY)) is not None:
        said.append((KV_RING_POLICY, parse_policy(text, name=KV_RING_POLICY)))
    if read_switch(environ, KV_RING_ADAPT):
        said.append((KV_RING_ADAPT, "adapt"))
    if not said:
        return "fixed", "the default", []
    origin, chosen = said[0]
    losers = [f"{name} ({policy})" for name, policy in said[1:] if policy != chosen]
    warnings = []
    if losers:
        warnings.append(f"ring policy {chosen} from {origin} overrides {' and '.join(losers)}")
    return chosen, origin, warnings
