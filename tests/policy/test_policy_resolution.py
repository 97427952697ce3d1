"""Who wins among switch, variables and default, and which table is consulted."""

from __future__ import annotations

import dataclasses
from itertools import product
from pathlib import Path

import pytest
from policy_samples import FINGERPRINT, make_asked, make_entry, make_request, make_table

from strata.errors import TableError, UsageError
from strata.policy import (
    POLICIES,
    FreeSwitches,
    choose_ring,
    differences,
    resolve_policy,
    save_table,
    search_folders,
    shipped_folder,
    user_folder,
)


def resolve(policy=None, table=None, fingerprint=FINGERPRINT, asked=None, **environ):
    asked = asked or make_asked(fingerprint)
    return resolve_policy(policy=policy, table=table, environ=environ, asked=asked)


@pytest.fixture(autouse=True)
def no_shipped_tables(monkeypatch, tmp_path):
    """Keep what happens to ship out of the search."""
    monkeypatch.setattr("strata.policy.search.shipped_folder", lambda: tmp_path / "shipped")


@pytest.mark.parametrize(
    ("switch", "variable", "adapt"),
    list(product([None, *POLICIES], [None, "", *POLICIES], [None, "", "0", "1"])),
)
def test_precedence(switch, variable, adapt):
    environ = {"XDG_DATA_HOME": "/nowhere"}
    if variable is not None:
        environ["STRATA_KV_RING_POLICY"] = variable
    if adapt is not None:
        environ["STRATA_KV_RING_ADAPT"] = adapt
    resolved = resolve(switch, **environ)
    said = [name for name in (switch, variable, "adapt" if adapt == "1" else None) if name]
    assert resolved.policy == (said[0] if said else "fixed")
    losers = [name for name in said[1:] if name != said[0]]
    assert len(resolved.warnings) == bool(losers)
    assert all(f"({name})" in resolved.warnings[0] for name in losers)


def test_one_warning_names_every_weaker_one_that_differs():
    resolved = resolve("depth", STRATA_KV_RING_POLICY="fixed", STRATA_KV_RING_ADAPT="yes")
    (warning,) = resolved.warnings
    assert warning == (
        "ring policy depth from --kv-ring-policy overrides "
        "STRATA_KV_RING_POLICY (fixed) and STRATA_KV_RING_ADAPT (adapt)"
    )


@pytest.mark.parametrize("spelling", ["adapt", "ADAPT", " Adapt "])
def test_case_and_blanks_do_not_matter(spelling):
    assert resolve(spelling).policy == "adapt"
    assert resolve(STRATA_KV_RING_POLICY=spelling).policy == "adapt"


@pytest.mark.parametrize("spelling", ["adaptive", "fix", "none", "1"])
def test_a_misspelt_policy_is_an_error_wherever_it_stands(spelling):
    with pytest.raises(UsageError, match=r"--kv-ring-policy: .* use one of fixed, depth, adapt"):
        resolve(spelling)
    with pytest.raises(UsageError, match="STRATA_KV_RING_POLICY: "):
        resolve("fixed", STRATA_KV_RING_POLICY=spelling)
    with pytest.raises(UsageError, match="--kv-ring-policy: ''"):
        resolve("")


@pytest.mark.parametrize("word", ["2", "adapt", "enabled"])
def test_a_misspelt_switch_word_is_an_error_even_where_it_would_lose(word):
    with pytest.raises(UsageError, match="STRATA_KV_RING_ADAPT: "):
        resolve("fixed", STRATA_KV_RING_ADAPT=word)


@pytest.fixture
def files(tmp_path):
    """Write a table named by the switch, one by the variable, one exported and one shipped."""
    names = ("switch", "variable", "user/strata/policies/exported", "shipped/shipped")
    return {
        Path(name).name: save_table(
            make_table(environment={"name": Path(name).name}), tmp_path / f"{name}.json"
        )
        for name in names
    }


def _found(resolved):
    return resolved.table.environment["name"] if resolved.table else None


def test_table_precedence(files, tmp_path):
    environ = {"STRATA_KV_RING_TABLE": str(files["variable"]), "XDG_DATA_HOME": f"{tmp_path}/user"}
    resolved = resolve("learned", files["switch"], **environ)
    assert _found(resolved) == "switch"
    assert resolved.table_origin == str(files["switch"])
    assert _found(resolve("learned", **environ)) == "variable"
    del environ["STRATA_KV_RING_TABLE"]
    assert _found(resolve("learned", **environ)) == "exported"
    files["exported"].unlink()
    assert _found(resolve("learned", **environ)) == "shipped"
    files["shipped"].unlink()
    resolved = resolve("learned", **environ)
    assert resolved.table is None
    assert f"{tmp_path}/user/strata/policies" in resolved.table_origin
    assert f"{tmp_path}/shipped" in resolved.table_origin


def test_a_table_whose_conditions_match_is_found_before_any_other(files, tmp_path):
    environ = {"XDG_DATA_HOME": f"{tmp_path}/user"}
    other = dataclasses.replace(FINGERPRINT, device="Device B")
    save_table(
        make_table(fingerprint=other, environment={"name": "b"}), tmp_path / "shipped/b.json"
    )
    assert _found(resolve("learned", fingerprint=other, **environ)) == "b"
    assert _found(resolve("learned", **environ)) == "exported"


def test_without_a_match_the_nearest_table_is_refused_by_what_differs(files, tmp_path):
    far = dataclasses.replace(FINGERPRINT, device="Device C", victims="lrfu")
    save_table(make_table(fingerprint=far), files["exported"])
    session = dataclasses.replace(FINGERPRINT, device="Device B")
    resolved = resolve("learned", fingerprint=session, XDG_DATA_HOME=f"{tmp_path}/user")
    assert _found(resolved) == "shipped"
    decision = choose_ring(
        make_request(policy="learned", table=resolved.table, fingerprint=session)
    )
    assert decision.ring_cells == 32_768
    (warning,) = decision.warnings
    assert "device is Device A in the table and Device B here" in warning


def test_the_newest_of_several_matches_is_taken(files, tmp_path):
    environ = {"XDG_DATA_HOME": f"{tmp_path}/user"}
    newer = make_table(created="2026-02-01T00:00:00Z", environment={"name": "newer"})
    save_table(newer, files["exported"].with_name("a.json"))
    assert _found(resolve("learned", **environ)) == "newer"


def test_of_matches_one_with_an_entry_goes_before_a_newer_one_without(files, tmp_path):
    environ = {"XDG_DATA_HOME": f"{tmp_path}/user"}
    folder = files["exported"].parent
    newer = make_table(
        created="2026-02-01T00:00:00Z",
        entries=(make_entry(131_072, "off"),),
        environment={"name": "newer"},
    )
    save_table(newer, folder / "newer.json")
    assert _found(resolve("learned", **environ)) == "exported"
    assert _found(resolve("learned", asked=make_asked(mode="off"), **environ)) == "newer"


def test_of_matches_that_ask_for_other_drafts_the_newest_of_ones_own_is_taken(files, tmp_path):
    environ = {"XDG_DATA_HOME": f"{tmp_path}/user"}
    three = dataclasses.replace(FINGERPRINT, spec=3, mtp_window=512)
    newer = make_table(
        created="2026-02-01T00:00:00Z", fingerprint=three, environment={"name": "three drafts"}
    )
    save_table(newer, files["exported"].with_name("three.json"))
    silent = make_asked(named=FreeSwitches())
    assert _found(resolve("learned", asked=silent, **environ)) == "three drafts"
    assert silent.under(newer).drafts == 3
    one = make_asked(named=FreeSwitches(drafts=1))
    assert _found(resolve("learned", asked=one, **environ)) == "exported"


def test_a_damaged_file_that_nobody_named_is_passed_over_with_one_warning(files, tmp_path):
    files["exported"].write_text("{")
    resolved = resolve("learned", XDG_DATA_HOME=f"{tmp_path}/user")
    assert _found(resolved) == "shipped"
    (warning,) = resolved.warnings
    assert str(files["exported"]) in warning


def test_a_damaged_file_that_was_named_is_an_error(files):
    files["switch"].write_text("{")
    for policy in POLICIES:
        with pytest.raises(TableError, match=r"switch\.json is not JSON"):
            resolve(policy, files["switch"])
    with pytest.raises(TableError, match=r"switch\.json is not JSON"):
        resolve("learned", STRATA_KV_RING_TABLE=str(files["switch"]))
    assert resolve("fixed", STRATA_KV_RING_TABLE=str(files["switch"])).warnings == ()


def test_a_named_table_that_does_not_apply_is_kept_for_the_decision_to_refuse(files):
    other = dataclasses.replace(FINGERPRINT, device="Device B")
    resolved = resolve("learned", files["switch"], fingerprint=other)
    request = make_request(
        policy="learned",
        table=resolved.table,
        table_origin=resolved.table_origin,
        fingerprint=other,
    )
    decision = choose_ring(request)
    assert decision.ring_cells == 32_768
    assert decision.warnings[0].startswith(
        f"policy table {files['switch']} does not apply: device is Device A in the table"
    )


def test_a_table_for_another_policy_is_not_consulted_and_that_is_said(files):
    resolved = resolve("adapt", files["switch"])
    assert resolved.table is None
    assert "is not consulted by the adapt policy" in resolved.warnings[0]
    with pytest.raises(UsageError, match="--kv-ring-table: an empty path"):
        resolve("learned", " ")


def test_folders():
    assert user_folder({"XDG_DATA_HOME": "/x"}) == Path("/x/strata/policies")
    home = {"HOME": "/h", "XDG_DATA_HOME": "relative"}
    assert user_folder(home) == Path("/h/.local/share/strata/policies")
    assert user_folder({}).is_absolute()
    assert search_folders(home)[0] == user_folder(home)
    assert shipped_folder().name == "policies"


def test_differences_are_one_clause_each():
    other = dataclasses.replace(FINGERPRINT, spec=2, vram_budget_bytes=4, model_hash="b" * 64)
    assert differences(FINGERPRINT, FINGERPRINT) == []
    assert differences(FINGERPRINT, other) == [
        "model_hash is aaaaaaaaaaaa... in the table and bbbbbbbbbbbb... here",
        "spec is 1 in the table and 2 here",
        "vram_budget_bytes is unset in the table and 4 here",
    ]
    assert len(differences(FINGERPRINT, other, "off")) == 2
