"""Requests, fingerprints and tables that the policy tests share."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from strata import __version__
from strata.config import Window
from strata.policy import (
    Asked,
    Declaration,
    Entry,
    Fingerprint,
    FreeSwitches,
    PolicyTable,
    RingRequest,
    make_tiers,
    need_cells,
)

if TYPE_CHECKING:
    from strata.lm import LanguageModel

FINGERPRINT = Fingerprint(
    device="Device A",
    model_hash="a" * 64,
    kv_dtype="bfloat16",
    page_cells=16,
)
TINY = Path(__file__).resolve().parents[1] / "data" / "tiny"
ON_TINY = ["--model", TINY, "--device", "cpu"]
PROVENANCE = {
    "study": "seed",
    "plan_sha256": "1" * 64,
    "protocol_sha256": None,
    "passages_sha256": "2" * 64,
    "measured_from": "2026-01-01T00:00:00Z",
    "measured_to": "2026-01-01T01:00:00+00:00",
}


def conditions_of(model: LanguageModel) -> Fingerprint:
    """Return the conditions of a plain session of `model` on this machine."""
    from strata.device import device_name

    return dataclasses.replace(
        FINGERPRINT,
        device=device_name(model.device),
        model_hash=model.model_hash,
        kv_dtype=str(model.dtype).removeprefix("torch."),
    )


def make_asked(
    fingerprint: Fingerprint = FINGERPRINT,
    mode: str = "on",
    named: FreeSwitches | None = None,
    need_cells: int = 131_344,
) -> Asked:
    """Return what a session is asked for that names all that `fingerprint` holds."""
    own = FreeSwitches(
        drafts=fingerprint.spec if mode == "on" else 0,
        window=Window.of_word(fingerprint.mtp_window),
        victims=fingerprint.victims,
        ring_default_cells=32_768,
    )
    return Asked(
        conditions=fingerprint, named=own if named is None else named, own=own,
        need_cells=need_cells,
    )  # fmt: skip


def make_entry(tier_cells: int, mode: str, ring_cells: int = 49_152, **fields: Any) -> Entry:
    """Return an entry that adopts `ring_cells`, unless `fields` says otherwise."""
    given = {"verdict": "better", "effect_ratio": 0.16, "lower_ratio": 0.037, "pairs": 3}
    return Entry(tier_cells=tier_cells, mode=mode, ring_cells=ring_cells, **(given | fields))


def make_table(**fields: Any) -> PolicyTable:
    """Return a table of 1K, 32K and 128K that takes 49,152 at 128K with the drafter on."""
    kept = {
        "ring_cells": 32_768,
        "verdict": "equivalent",
        "effect_ratio": 0.0,
        "lower_ratio": -0.01,
    }
    given: dict[str, Any] = {
        "created": "2026-01-02T03:04:05Z",
        "engine_version": __version__,
        "fingerprint": FINGERPRINT,
        "environment": {"driver": "1.2", "threads": 2},
        "provenance": PROVENANCE,
        "default_ring_cells": 32_768,
        "margin_ratio": 0.01,
        "tiers": make_tiers([1_024, 32_768, 131_072]),
        "entries": (
            make_entry(1_024, "on", **kept),
            make_entry(32_768, "on", **(kept | {"verdict": "worse"})),
            make_entry(131_072, "on"),
            make_entry(131_072, "off", **(kept | {"verdict": "undecided"})),
        ),
    }
    return PolicyTable(**(given | fields))


def make_request(prompt_cells: int = 131_072, **fields: Any) -> RingRequest:
    """Return the request of one `generate`, default 32,768 and cap 49,152 unless told otherwise."""
    page = fields.get("page_cells", 16)
    need = need_cells(prompt_cells=prompt_cells, max_new=256, page_cells=page)
    given: dict[str, Any] = {
        "policy": "fixed",
        "need_cells": need,
        "max_context_cells": need,
        "page_cells": page,
        "minimum_cells": 2 * page,
        "default_cells": 32_768,
        "kv_resident": 49_152,
        "mode": "on",
        "fingerprint": FINGERPRINT,
    }
    return RingRequest(**(given | fields))


@st.composite
def tables(draw: st.DrawFn) -> PolicyTable:
    """Draw any table that a reader accepts."""
    page = draw(st.sampled_from([1, 16, 64]))
    rings = st.integers(1, 4_096).map(lambda pages: pages * page)
    default = draw(rings)
    names = draw(st.lists(st.integers(1, 200_000), min_size=1, max_size=4, unique=True))
    tiers = make_tiers(names)
    entries = []
    for tier in tiers:
        for mode in draw(st.sampled_from([(), ("on",), ("off", "on")])):
            ring = draw(rings)
            if ring == default:
                fields = {"verdict": "no evidence", "effect_ratio": None, "lower_ratio": None}
            else:
                lower = draw(st.floats(1e-6, 1.0))
                fields = {"lower_ratio": lower, "effect_ratio": lower + draw(st.floats(0, 1.0))}
            entries.append(make_entry(tier.name_cells, mode, ring, **fields))
    text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
    fingerprint = dataclasses.replace(
        FINGERPRINT,
        device=draw(text),
        page_cells=page,
        select=draw(st.sampled_from(["0", "2048", "depth/8"])),
        spec=draw(st.sampled_from([1, 3, "auto"])),
        mtp_window=draw(st.sampled_from([0, 512, "auto", "min(ring, 512)"])),
        vram_budget_bytes=draw(st.sampled_from([None, 1 << 30])),
        context=draw(st.sampled_from(["own", 131_072])),
    )
    declared = Declaration(
        field="device", value=draw(text), reason="same", declared=PROVENANCE["measured_from"]
    )
    return make_table(
        fingerprint=fingerprint,
        default_ring_cells=default,
        tiers=tiers,
        entries=tuple(entries),
        environment=draw(st.dictionaries(text, st.none() | st.integers(-9, 9) | text, max_size=3)),
        declarations=draw(st.sampled_from([(), (declared,)])),
    )
