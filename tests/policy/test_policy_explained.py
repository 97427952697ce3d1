"""`strata policy explain` and a session decide alike, whatever the switches and the table."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from policy_samples import ON_TINY, conditions_of, make_entry, make_table
from typer.testing import CliRunner

from strata.cli.policy import app
from strata.cli.session_options import session_config
from strata.config import Window
from strata.errors import StrataError
from strata.policy import POLICIES, make_tiers, save_table
from strata.session import create_session

SWITCHES = {
    "kv_ring_policy": [None, "learned", "learned", "learned", "learned", *POLICIES],
    "spec": [None, None, None, "0", "1", "2", "auto"],
    "mtp_window": [None, None, None, "auto", "0", "64"],
    "kv_evict": [None, None, None, "clock", "lrfu"],
    "kv_select": [None, None, None, "0", "48", "depth/2"],
    "kv_page": [None, None, None, 16, 8],
    "kv_resident": [None, None, None, "auto", "96", "16", "0"],
    "kv_ring_default": [None, None, None, "64", "32"],
    "vram_budget": [None, None, None, None, "800KiB", "1MiB", "1200KiB"],
    "max_context": [None, None, None, "256", "100"],
}
OTHER = {
    "device": "another",
    "select": "32",
    "page_cells": 4,
    "vram_budget_bytes": 1 << 30,
    "context": 4_096,
}


@pytest.fixture(autouse=True)
def nothing_shipped(monkeypatch, tmp_path):
    monkeypatch.setattr("strata.policy.search.shipped_folder", lambda: tmp_path / "shipped")
    for name in ("POLICY", "ADAPT", "TABLE"):
        monkeypatch.delenv(f"STRATA_KV_RING_{name}", raising=False)


def drawn(data, values, name):
    return data.draw(st.sampled_from(values), name)


def drawn_table(data, model, config):
    """Return a table of tiers 64 and 128, measured mostly as the session runs."""
    told = {
        "spec": drawn(data, [1, 2, "auto"], "table: spec"),
        "mtp_window": drawn(data, ["auto", "min(ring, 48)", 0, 64], "table: window"),
        "victims": drawn(data, ["clock", "lrfu"], "table: victims"),
        "select": str(config.kv.selection),
        "page_cells": config.kv.page_cells,
        "vram_budget_bytes": config.vram_budget_bytes,
        "context": config.max_context_cells or "own",
    }
    if differs := drawn(data, [None, None, None, None, None, *OTHER], "table: differs"):
        told[differs] = OTHER[differs]
    default = drawn(data, [64, 32, 1_024], "table: default ring")
    kept = {"verdict": "equivalent", "effect_ratio": 0.0, "lower_ratio": -0.01}
    entries = [
        make_entry(tier, mode, ring) if ring != default else make_entry(tier, mode, ring, **kept)
        for tier in (64, 128)
        for mode in drawn(data, [("off", "on"), ("off", "on"), ("on",)], "table: modes")
        for ring in [drawn(data, [48, 80, default], "table: ring")]
    ]
    return make_table(
        fingerprint=dataclasses.replace(conditions_of(model), **told),
        default_ring_cells=default,
        tiers=make_tiers([64, 128]),
        entries=tuple(entries),
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
@given(data=st.data())
def test_explain_and_a_session_say_the_same(tiny, tmp_path, data):
    drawn_switches = {name: drawn(data, values, name) for name, values in SWITCHES.items()}
    switches = {name: value for name, value in drawn_switches.items() if value is not None}
    table = drawn_table(data, tiny, session_config(**switches))
    path = str(save_table(table, tmp_path / "home" / "strata" / "policies" / "table.json"))
    environ = {"XDG_DATA_HOME": str(tmp_path / "home")}
    where = drawn(data, ["switch", "variable", "found", "nowhere"], "where")
    if where == "switch":
        switches["kv_ring_table"] = path
    elif where == "variable":
        environ["STRATA_KV_RING_TABLE"] = path
    elif where == "nowhere":
        environ["XDG_DATA_HOME"] = str(tmp_path / "empty")
    for name, values in (
        ("STRATA_KV_RING_POLICY", [None, "learned", "learned", "depth", "adapt"]),
        ("STRATA_KV_RING_ADAPT", [None, None, "1", "off"]),
    ):
        if (value := drawn(data, values, name)) is not None:
            environ[name] = value
    prompt, max_new = data.draw(st.integers(1, 200), "prompt"), data.draw(st.integers(1, 12))

    words = ["explain", *ON_TINY, "--depth", prompt, "--max-new", max_new]
    for name, value in switches.items():
        words += ["--" + name.replace("_", "-"), value]
    explained = CliRunner().invoke(app, [str(word) for word in words], env=environ)
    config, session, refusal = session_config(**switches), None, ""
    try:
        session = create_session(
            tiny, config, prompt_cells=prompt, max_new=max_new, environ=environ
        )
    except StrataError as error:
        refusal = f"error: {error}\n"
    if session is None:
        event("refused")
        assert (explained.exit_code, explained.stderr) == (2, refusal)
        return
    assert explained.exit_code == 0, explained.output
    decision = session.decision
    event(f"{decision.policy}, {'obeyed' if decision.table else 'not obeyed'}")
    assert explained.stdout.splitlines()[0] == decision.log_line
    assert explained.stderr == "".join(f"warning: {line}\n" for line in session.warnings)
    assert session.engine.kv.geometry.slots * config.kv.page_cells == decision.pool_cells
    if decision.table is not None and session.drafts:
        measured = table.fingerprint
        assert session.drafts == measured.spec
        reach = Window.of_word(measured.mtp_window).reach(
            pool_cells=decision.pool_cells,
            max_context=config.max_context_cells or decision.need_cells,
        )
        assert session.mtp_window_cells == reach
        assert session.engine.kv.victims == measured.victims
    session.close()
