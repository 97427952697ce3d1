"""Turn a policy table into a JSON document and back, checking every field on the way in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, cast, get_args

from strata.config import MAX_DRAFTS, WINDOW_PATTERN, Victims
from strata.errors import TableError
from strata.policy.fingerprint import FIELDS, Fingerprint, Mode
from strata.policy.reader import ObjectReader
from strata.policy.table import VERDICTS, Declaration, Entry, PolicyTable, Verdict
from strata.policy.tiers import Tier, make_tiers

SCHEMA = "strata.ring-policy/1"
SELECT_PATTERN = r"0|[1-9][0-9]*|depth/[1-9][0-9]*"
KV_DTYPES = ("float32", "bfloat16")
VICTIMS: tuple[str, ...] = get_args(Victims)
DECLARABLE = ("engine", *FIELDS)
PROVENANCE_HASHES = ("plan_sha256", "protocol_sha256", "passages_sha256")
PROVENANCE_INSTANTS = ("measured_from", "measured_to")


def body_hash(document: dict[str, Any]) -> str:
    """Return the SHA-256 of everything in `document` but its own ``sha256`` field.

    The bytes hashed are compact JSON with sorted keys in UTF-8, so that white space and the
    order of keys do not count.
    """
    body = {name: value for name, value in document.items() if name != "sha256"}
    text = json.dumps(
        body, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def to_document(table: PolicyTable) -> dict[str, Any]:
    """Return the JSON document of `table`, its hash included; raise TableError if none can be."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "created": table.created,
        "engine": {"version": table.engine_version, "commit": table.engine_commit},
        "fingerprint": {name: getattr(table.fingerprint, name) for name in FIELDS},
        "environment": dict(table.environment),
        "provenance": dict(table.provenance),
        "default_ring_cells": table.default_ring_cells,
        "margin": table.margin_ratio,
        "tiers": [
            {
                "name_cells": tier.name_cells,
                "lower_cells": tier.lower_cells,
                "upper_cells": tier.upper_cells,
            }
            for tier in table.tiers
        ],
        "entries": [_entry_document(entry) for entry in table.entries],
        "declarations": [
            {
                "field": declaration.field,
                "value": declaration.value,
                "reason": declaration.reason,
                "declared": declaration.declared,
            }
            for declaration in table.declarations
        ],
    }
    try:
        document["sha256"] = body_hash(document)
    except (TypeError, ValueError) as error:
        raise TableError(f"the table cannot be written as JSON: {error}") from error
    return document


def from_document(document: object) -> PolicyTable:
    """Return the table that a parsed document holds.

    The schema's name is looked at first, then the hash, then every field: a foreign or damaged
    document is called that, and not by the first field that happens to look odd. Raises
    TableError with the place and what it should hold.
    """
    reader = ObjectReader(document, "")
    if (schema := reader.take("schema")) != SCHEMA:
        raise TableError(
            f"schema must be {SCHEMA!r}, got {schema!r}, which this version cannot read"
        )
    recorded = reader.matching("sha256", r"[0-9a-f]{64}", "64 hexadecimal digits")
    try:
        actual = body_hash(cast(dict[str, Any], document))
    except ValueError as error:
        raise TableError(f"it holds a value that no table can: {error}") from error
    if recorded != actual:
        raise TableError(
            f"the contents do not match their own sha256 (recorded {recorded[:12]}, "
            f"found {actual[:12]}): the file was damaged or edited; "
            "copy it again, or write it anew with strata policy export"
        )
    engine = reader.child("engine")
    fingerprint = _read_fingerprint(reader.child("fingerprint"))
    tiers = _read_tiers(reader)
    page_cells = fingerprint.page_cells
    default_ring = reader.integer("default_ring_cells", at_least=1)
    if default_ring % page_cells:
        raise TableError(
            f"default_ring_cells {default_ring} is no multiple of {page_cells}, a page"
        )
    table = PolicyTable(
        created=reader.instant("created"),
        engine_version=engine.text("version"),
        engine_commit=engine.optional("commit", engine.text),
        fingerprint=fingerprint,
        environment=_read_environment(reader),
        provenance=_read_provenance(reader.child("provenance")),
        default_ring_cells=default_ring,
        margin_ratio=reader.share("margin"),
        tiers=tiers,
        entries=_read_entries(reader, tiers, default_ring, page_cells),
        declarations=tuple(_read_declaration(item) for item in reader.children("declarations")),
    )
    engine.close()
    reader.close()
    return table


def _entry_document(entry: Entry) -> dict[str, Any]:
    return {
        "tier_cells": entry.tier_cells,
        "mode": entry.mode,
        "ring_cells": entry.ring_cells,
        "verdict": entry.verdict,
        "effect": entry.effect_ratio,
        "lower": entry.lower_ratio,
        "upper": entry.upper_ratio,
        "confidence": entry.confidence,
        "pairs": entry.pairs,
        "passages": entry.passages,
        "predicted": entry.predicted,
    }


_RULES: dict[str, Callable[[ObjectReader], Any]] = {
    "engine": lambda item: item.matching(
        "engine", r"[^+\s]+", "a release, without a + and a label"
    ),
    "device": lambda item: item.text("device"),
    "model_hash": lambda item: item.text("model_hash"),
    "kv_dtype": lambda item: item.one_of("kv_dtype", KV_DTYPES),
    "page_cells": lambda item: item.integer("page_cells", at_least=1),
    "select": lambda item: item.matching(
        "select", SELECT_PATTERN, "0, a number of cells or depth/N"
    ),
    "spec": lambda item: _read_drafts(item),
    "mtp_window": lambda item: _read_window(item),
    "victims": lambda item: item.one_of("victims", VICTIMS),
    "vram_budget_bytes": lambda item: item.optional(
        "vram_budget_bytes", lambda name: item.integer(name, at_least=1)
    ),
    "context": lambda item: item.word_or_integer("context", "own", at_least=1),
}
"""What each of DECLARABLE may be."""


def check_condition(name: str, value: object) -> None:
    """Raise TableError where `value` is none that a session could have of one of DECLARABLE."""
    _RULES[name](ObjectReader({name: value}, ""))


def _read_fingerprint(reader: ObjectReader) -> Fingerprint:
    fingerprint = Fingerprint(**{name: _RULES[name](reader) for name in FIELDS})
    reader.close()
    return fingerprint


def _read_drafts(reader: ObjectReader) -> int | Literal["auto"]:
    drafts: int | Literal["auto"] = reader.word_or_integer("spec", "auto", at_least=0)
    if drafts != "auto" and drafts > MAX_DRAFTS:
        raise reader.refuse("spec", f"at most {MAX_DRAFTS} drafts", drafts)
    return drafts


def _read_window(reader: ObjectReader) -> int | str:
    word = reader.take("mtp_window")
    if isinstance(word, str) and word != "auto":
        return reader.matching("mtp_window", WINDOW_PATTERN, "auto, min(ring, N) or a number")
    return cast("int | str", reader.word_or_integer("mtp_window", "auto", at_least=0))


def _read_environment(reader: ObjectReader) -> dict[str, Any]:
    value = reader.take("environment")
    if not isinstance(value, dict):
        raise reader.refuse("environment", "an object", value)
    return value


def _read_provenance(reader: ObjectReader) -> dict[str, Any]:
    reader.text("study")
    for name in PROVENANCE_HASHES:
        reader.optional(name, reader.text)
    first, last = (reader.optional(name, reader.instant) for name in PROVENANCE_INSTANTS)
    if first and last and _moment(last) < _moment(first):
        raise reader.refuse("measured_to", f"no earlier than measured_from, {first}", last)
    return reader.scalars()


def _moment(instant: str) -> datetime:
    try:
        return datetime.fromisoformat(instant)
    except ValueError as error:
        raise TableError(f"{instant} is no instant: {error}") from None


def _read_tiers(reader: ObjectReader) -> tuple[Tier, ...]:
    items = list(reader.children("tiers"))
    if not items:
        raise reader.refuse("tiers", "a list of at least one tier", [])
    found: list[Tier] = []
    for item in items:
        found.append(
            Tier(
                name_cells=item.integer("name_cells", at_least=1),
                lower_cells=item.integer("lower_cells", at_least=0),
                upper_cells=item.integer("upper_cells", at_least=1),
            )
        )
        item.close()
    names = [tier.name_cells for tier in found]
    if sorted(set(names)) != names:
        raise reader.refuse("tiers", "ascending tiers with distinct names", names)
    for item, tier, right in zip(items, found, make_tiers(names), strict=True):
        for key in ("lower_cells", "upper_cells"):
            value, wanted = getattr(tier, key), getattr(right, key)
            if value != wanted:
                raise item.refuse(key, f"{wanted} in this place", value)
    return tuple(found)


def _read_entries(
    reader: ObjectReader, tiers: tuple[Tier, ...], default_ring: int, page_cells: int
) -> tuple[Entry, ...]:
    names = {tier.name_cells for tier in tiers}
    entries: dict[tuple[int, str], Entry] = {}
    for item in reader.children("entries"):
        entry = _read_entry(item)
        if entry.tier_cells not in names:
            raise item.refuse("tier_cells", "the name of a tier in the table", entry.tier_cells)
        if (entry.tier_cells, entry.mode) in entries:
            raise item.refuse("mode", "in one entry only for each tier", entry.mode)
        if entry.ring_cells % page_cells:
            raise item.refuse("ring_cells", f"a multiple of {page_cells}, a page", entry.ring_cells)
        if (entry.verdict == "better") == (entry.ring_cells == default_ring):
            rule = "other than" if entry.verdict == "better" else "equal to"
            raise item.refuse(
                "ring_cells",
                f"{rule} the default ring {default_ring} where the verdict is {entry.verdict!r}",
                entry.ring_cells,
            )
        if entry.verdict == "better" and (entry.gain is None or entry.gain.lower_ratio <= 0):
            raise item.refuse("lower", "above 0 where the verdict is 'better'", entry.lower_ratio)
        _check_figures(item, entry)
        entries[entry.tier_cells, entry.mode] = entry
    return tuple(entries.values())


def _check_figures(item: ObjectReader, entry: Entry) -> None:
    """Raise TableError where an entry's figures contradict each other."""
    lower, effect, upper = entry.lower_ratio, entry.effect_ratio, entry.upper_ratio
    if lower is not None and upper is not None and lower > upper:
        raise item.refuse("lower", f"no more than upper, {upper}", lower)
    if effect is None and (lower is not None or upper is not None):
        raise item.refuse("effect", "a number where it has a bound", effect)
    if effect is not None and lower is not None and effect < lower:
        raise item.refuse("effect", f"no less than lower, {lower}", effect)
    if effect is not None and upper is not None and effect > upper:
        raise item.refuse("effect", f"no more than upper, {upper}", effect)
    if entry.passages > entry.pairs:
        raise item.refuse("passages", f"no more than its pairs, {entry.pairs}", entry.passages)


def _read_entry(item: ObjectReader) -> Entry:
    def ratio(name: str) -> float:
        return item.number(name, above=-1.0)

    entry = Entry(
        tier_cells=item.integer("tier_cells", at_least=1),
        mode=cast(Mode, item.one_of("mode", get_args(Mode))),
        ring_cells=item.integer("ring_cells", at_least=1),
        verdict=cast(Verdict, item.one_of("verdict", VERDICTS)),
        effect_ratio=item.optional("effect", ratio),
        lower_ratio=item.optional("lower", ratio),
        upper_ratio=item.optional("upper", ratio),
        confidence=item.number("confidence", above=0.0, below=1.0),
        pairs=item.integer("pairs", at_least=0),
        passages=item.integer("passages", at_least=0),
        predicted=item.boolean("predicted"),
    )
    item.close()
    return entry


def _read_declaration(item: ObjectReader) -> Declaration:
    value = item.take("value")
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise item.refuse("value", "a string, a whole number or null", value)
    field = item.one_of("field", DECLARABLE)
    _RULES[field](ObjectReader({field: value}, item.path("value")))
    declaration = Declaration(
        field=field,
        value=value,
        reason=item.text("reason"),
        declared=item.instant("declared"),
    )
    item.close()
    return declaration
