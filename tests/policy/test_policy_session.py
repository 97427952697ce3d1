"""A session and `strata policy explain` decide alike and print the same line."""

from __future__ import annotations

import pytest
from policy_samples import ON_TINY, make_entry, make_table
from typer.testing import CliRunner

from strata import __version__
from strata.cli.policy import app
from strata.config import KvConfig, SessionConfig, SpecConfig
from strata.device import device_name
from strata.errors import TableError
from strata.policy import POLICIES, Fingerprint, make_tiers, save_table
from strata.session import create_session

PROMPT, MAX_NEW = 100, 12
CAP, DEFAULT = 96, 64


@pytest.fixture(autouse=True)
def no_tables(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("strata.policy.search.shipped_folder", lambda: tmp_path / "shipped")
    for name in ("POLICY", "ADAPT", "TABLE"):
        monkeypatch.delenv(f"STRATA_KV_RING_{name}", raising=False)


@pytest.fixture
def make_file(tiny, tmp_path):
    """Return a function that writes a table for the tiny model on this machine."""

    def write(**changes):
        fields = {
            "device": device_name(tiny.device),
            "model_hash": tiny.model_hash,
            "kv_dtype": "float32",
            "page_cells": 16,
        }
        table = make_table(
            engine_version=__version__,
            fingerprint=Fingerprint(**(fields | changes)),
            default_ring_cells=DEFAULT,
            tiers=make_tiers([128]),
            entries=(make_entry(128, "on", 80), make_entry(128, "off", 32)),
        )
        return str(save_table(table, tmp_path / "table.json"))

    return write


def create(model, policy, table=None, drafts=1, resident=CAP, min_p=0.0, prefetch=None):
    config = SessionConfig(
        kv=KvConfig(resident_cells=resident, ring_default_cells=DEFAULT),
        spec=SpecConfig(drafts=drafts, min_p=min_p),
        policy=policy,
        table=table,
        prefetch=prefetch,
    )
    return create_session(model, config, prompt_cells=PROMPT, max_new=MAX_NEW, environ={})


def explained(policy, table=None, drafts=1, resident=CAP):
    words = ["explain", *ON_TINY, "--policy", policy, "--depth", PROMPT, "--max-new", MAX_NEW]
    words += ["--spec", drafts, "--kv-resident", resident, "--kv-ring-default", DEFAULT]
    words += ["--table", table] if table else []
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()[0]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("drafts", [0, 1])
@pytest.mark.parametrize("resident", [0, 32, CAP, 1_024])
def test_session_and_explain_print_the_same_line(tiny, make_file, policy, drafts, resident):
    table = make_file() if policy == "learned" else None
    session = create(tiny, policy, table, drafts, resident)
    assert session.decision.log_line == explained(policy, table, drafts, resident)
    session.close()


def test_a_session_reserves_what_its_table_says(tiny, make_file):
    path = make_file()
    for drafts, ring in ((1, 80), (0, 32)):
        session = create(tiny, "learned", path, drafts)
        assert session.decision.pool_cells == ring
        assert session.engine.kv.geometry.slots * 16 == ring
        assert session.warnings == []


def test_a_gain_was_measured_without_an_early_stop(tiny, make_file):
    path = make_file()
    (warning,) = create(tiny, "learned", path, min_p=0.5).warnings
    assert "was measured without --spec-min-p" in warning
    assert create(tiny, "learned", path, drafts=0, min_p=0.5).warnings == []
    assert create(tiny, "depth", min_p=0.5).warnings == []


def test_a_gain_was_measured_with_the_default_prefetch(tiny, make_file):
    path = make_file()
    (warning,) = create(tiny, "learned", path, prefetch="none").warnings
    assert "was measured with --prefetch experts" in warning
    assert create(tiny, "depth", prefetch="none").warnings == []
    (warning,) = create(tiny, "learned", path, prefetch="experts").warnings
    assert "--prefetch experts fetches nothing" in warning  # this session's rounds are no kernels'


def test_a_session_on_another_model_keeps_the_default_and_says_so(tiny, make_file):
    session = create(tiny, "learned", make_file(model_hash="0" * 64))
    assert session.decision.pool_cells == DEFAULT
    (warning,) = session.warnings
    assert "model_hash is 000000000000..." in warning


def test_a_session_refuses_a_damaged_table(tiny, make_file, tmp_path):
    path = make_file()
    (tmp_path / "table.json").write_text((tmp_path / "table.json").read_text()[:-100])
    with pytest.raises(TableError, match="is not JSON"):
        create(tiny, "learned", path)
