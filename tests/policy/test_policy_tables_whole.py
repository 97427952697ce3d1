"""Tables as wholes: what differs, what may be joined, what may be reused."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pytest
from hypothesis import given
from policy_samples import FINGERPRINT, PROVENANCE, make_entry, make_request, make_table, tables
from typer.testing import CliRunner

from strata.cli.policy import app
from strata.errors import TableError
from strata.policy import choose_ring, load_table, make_tiers, save_table
from strata.policy.diff import diff_tables
from strata.policy.merge import NamedTable, declare, merge_tables
from strata.policy.table import DOCUMENTS, decision_key
from strata.policy.table_file import dump_table

LATER = PROVENANCE | {"study": "later", "measured_to": "2026-02-01T00:00:00Z"}
KEPT = {"ring_cells": 32_768, "verdict": "equivalent", "effect_ratio": 0.0, "lower_ratio": -0.01}


def named(*tables_):
    return [NamedTable(f"t{number}", table) for number, table in enumerate(tables_, start=1)]


def run(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.stderr
    return result


# -- diff ---------------------------------------------------------------------------------


@given(tables())
def test_a_table_does_not_differ_from_itself(table):
    found = diff_tables(table, dataclasses.replace(table, created="2030-01-01T00:00:00Z"))
    assert (found.facts, found.entries, found.moves_a_ring) == ((), (), False)


def test_every_kind_of_difference_is_told():
    first = make_table()
    second = make_table(
        fingerprint=dataclasses.replace(FINGERPRINT, victims="lrfu"),
        entries=(
            make_entry(1_024, "off", **KEPT),
            make_entry(32_768, "on", **(KEPT | {"verdict": "undecided"})),
            make_entry(131_072, "on", 65_536),
            make_entry(131_072, "off", **(KEPT | {"verdict": "undecided", "pairs": 9})),
        ),
    )
    found = diff_tables(first, second)
    assert [(one.name, one.first, one.second) for one in found.facts] == [
        ("victims", "clock", "lrfu")
    ]
    assert {(one.tier_cells, one.mode): one.change for one in found.entries} == {
        (1_024, "off"): "only in B",
        (1_024, "on"): "only in A",
        (32_768, "on"): "other verdict",
        (131_072, "on"): "other ring",
        (131_072, "off"): "other figures",
    }
    assert found.moves_a_ring


def test_the_command_prints_both_sides(tmp_path):
    first = save_table(make_table(), tmp_path / "a.json")
    second = save_table(
        make_table(entries=make_table().entries[:2], default_ring_cells=32_768, margin_ratio=0.02),
        tmp_path / "b.json",
    )
    assert run("diff", first, first).stdout == "the tables say the same\n"
    words = run("diff", first, second).stdout
    for part in ("margin", "0.01", "0.02", "only in A", "49152, better, +16.0%", "3 pairs"):
        assert part in words
    assert "does not exist" in run("diff", first, tmp_path / "c.json", code=2).stderr


# -- merge --------------------------------------------------------------------------------


def test_entries_of_other_tiers_are_joined_and_say_where_they_come_from():
    first = make_table(
        tiers=make_tiers([1_024]), entries=(make_entry(1_024, "on"), make_entry(1_024, "off"))
    )
    second = make_table(
        tiers=make_tiers([32_768]), entries=(make_entry(32_768, "on", 65_536),), provenance=LATER
    )
    merged = merge_tables(named(first, second))
    assert merged.tiers == make_tiers([1_024, 32_768])
    assert {(e.tier_cells, e.mode, e.ring_cells) for e in merged.entries} == {
        (1_024, "off", 49_152), (1_024, "on", 49_152), (32_768, "on", 65_536)
    }  # fmt: skip
    facts = merged.provenance
    assert facts["study"] == "seed+later"
    assert facts["measured_from"] == PROVENANCE["measured_from"]
    assert facts["measured_to"] == LATER["measured_to"]
    assert facts["merged_1"].endswith(": 1024/off 1024/on")
    assert facts["merged_2"].endswith(": 32768/on")
    assert load_from(merged) == merged


def load_from(table):
    import json

    from strata.policy.table_document import from_document

    return from_document(json.loads(dump_table(table)))


@given(tables())
def test_a_table_joined_with_itself_says_the_same(table):
    merged = merge_tables(named(table, table))
    assert {*merged.entries} == {*table.entries}
    found = diff_tables(table, merged)
    assert (found.facts, found.entries) == ((), ())


def test_evidence_goes_before_none_and_the_last_measured_before_the_first():
    nothing = make_entry(131_072, "on", **(KEPT | {"verdict": "no evidence"}))
    better = make_entry(131_072, "on", pairs=3)
    again = make_entry(131_072, "on", pairs=12)
    tables_ = named(
        make_table(entries=(again,), provenance=LATER),
        make_table(entries=(better,)),
        make_table(entries=(nothing,), provenance=PROVENANCE | {"measured_to": None},
                   created="2027-01-01T00:00:00Z"),
    )  # fmt: skip
    assert tables_[2].measured_to == datetime(2027, 1, 1, tzinfo=UTC)
    for order in (tables_, tables_[::-1]):
        assert merge_tables(order).entries == (again,)


def test_a_contradiction_is_refused_unless_the_newest_is_asked_for():
    first = make_table(entries=(make_entry(131_072, "on", 49_152),))
    second = make_table(entries=(make_entry(131_072, "on", **KEPT),), provenance=LATER)
    with pytest.raises(TableError, match=r"tier 128K, drafter on: .*t1 gives 49152 .*--newest"):
        merge_tables(named(first, second))
    for order in ((first, second), (second, first)):
        (entry,) = merge_tables(named(*order), newest=True).entries
        assert entry.ring_cells == 32_768
    tied = dataclasses.replace(second, provenance=PROVENANCE)
    with pytest.raises(TableError, match="measured at one time"):
        merge_tables(named(first, tied), newest=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprint": dataclasses.replace(FINGERPRINT, device="B")}, "device is Device A in t1"),
        ({"engine_version": "9.9"}, "engine is .* in t1 and 9.9 in t2"),
        ({"margin_ratio": 0.5}, "margin_ratio is 0.01 in t1 and 0.5 in t2"),
    ],
)
def test_tables_of_other_sessions_are_not_joined(change, message):
    with pytest.raises(TableError, match=message):
        merge_tables(named(make_table(), make_table(**change)))


# -- declare ------------------------------------------------------------------------------


def test_a_table_is_reused_elsewhere_only_by_a_written_word():
    other = dataclasses.replace(FINGERPRINT, device="Device B")
    table = make_table(fingerprint=other)
    request = make_request(policy="learned", table=table, table_origin="t")
    assert choose_ring(request).ring_cells == 32_768
    told = declare(table, field="device", value="Device A", reason="the same chip")
    decision = choose_ring(dataclasses.replace(request, table=told))
    assert decision.ring_cells == 49_152
    assert load_from(told) == told
    # And so it may be joined to a table of that device, but not the other way round.
    assert merge_tables(named(make_table(), told)).fingerprint == FINGERPRINT
    with pytest.raises(TableError, match="strata policy declare` writes into t2"):
        merge_tables(named(told, make_table()))
    with pytest.raises(TableError, match="declares device Device A already"):
        declare(told, field="device", value="Device A", reason="again")
    with pytest.raises(TableError, match="was measured with device Device B"):
        declare(told, field="device", value="Device B", reason="again")


def test_a_joined_table_declares_only_what_all_do():
    both = declare(make_table(), field="device", value="Device C", reason="one")
    more = declare(both, field="kv_dtype", value="float32", reason="two")
    merged = merge_tables(named(more, both))
    assert [(one.field, one.reason) for one in merged.declarations] == [("device", "one")]


def test_merge_and_declare_from_the_command_line(tmp_path):
    first = save_table(make_table(), tmp_path / "a.json")
    out = tmp_path / "out.json"
    words = ("declare", first, "--reason", "same", "--out", out)
    run(*words, "--field", "vram_budget_bytes", "--value", "40MiB")
    assert load_table(out).declarations[0].value == 40 << 20
    run(*words, "--field", "mtp_window", "--value", "4K")
    assert load_table(out).declarations[0].value == 4_096
    run(*words, "--field", "spec", "--value", "3")
    assert load_table(out).declarations[0].value == 3
    assert "none of engine, device" in run(*words, "--field", "x", "--value", "1", code=2).stderr
    assert "no number" in run(*words, "--field", "spec", "--value", "x", code=2).stderr
    run("merge", first, first, "--out", out)
    assert {*load_table(out).entries} == {*load_table(first).entries}
    assert "at least two" in run("merge", first, "--out", out, code=2).stderr
    assert "does not exist" in run("merge", first, tmp_path / "x", "--out", out, code=2).stderr


def test_a_predicted_entry_is_marked_and_without_evidence_not_obeyed():
    guess = make_entry(131_072, "on", 49_152, predicted=True, pairs=0)
    table = make_table(entries=(guess,))
    request = make_request(policy="learned", table=table, table_origin="t")
    assert "predicted" in choose_ring(request).log_line
    unsure = make_entry(131_072, "on", **(KEPT | {"verdict": "no evidence"}), predicted=True)
    decision = choose_ring(dataclasses.replace(request, table=make_table(entries=(unsure,))))
    assert (decision.ring_cells, decision.gain) == (32_768, None)


def test_a_joined_table_keeps_each_entry_s_reason():
    why = {decision_key(131_072, "on"): "one says so", decision_key(32_768, "on"): "not mine"}
    first = make_table(entries=make_table().entries[2:], provenance=PROVENANCE | why)
    other = {decision_key(32_768, "on"): "the other says so", decision_key(131_072, "on"): "no"}
    second = make_table(entries=make_table().entries[1:2], provenance=PROVENANCE | other)
    merged = merge_tables(named(first, second))
    told = {name: text for name, text in merged.provenance.items() if name.startswith("decision")}
    assert told == {
        decision_key(131_072, "on"): "one says so",
        decision_key(32_768, "on"): "the other says so",
    }
    again = merge_tables(named(merged, merged))
    assert told.items() <= again.provenance.items()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("select", "depth/0"), ("select", "-1"), ("select", "depth/x"), ("kv_dtype", "int8"),
        ("victims", "lru"), ("page_cells", "0"), ("page_cells", "-16"), ("context", "0"),
        ("context", "auto"), ("mtp_window", "-1"), ("mtp_window", "own"), ("spec", "99"),
        ("spec", "\u0663"), ("spec", "-1"), ("vram_budget_bytes", "0"), ("engine", "0.1.0+cu128"),
        ("engine", ""), ("device", ""), ("model_hash", ""),
    ],
)  # fmt: skip
def test_what_no_session_has_cannot_be_declared(tmp_path, field, value):
    path = save_table(make_table(), tmp_path / "a.json")
    words = ["--field", field, f"--value={value}", "--reason", "r", "--out", tmp_path / "b.json"]
    run("declare", path, *words, code=2)
    assert not (tmp_path / "b.json").exists()


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [("select", "2K", "2048"), ("select", "depth/8", "depth/8"), ("context", "128K", 131_072),
     ("mtp_window", "512", 512), ("spec", "auto", "auto"), ("vram_budget_bytes", "1GiB", 1 << 30)],
)  # fmt: skip
def test_a_declared_value_is_kept_as_a_session_would_say_it(tmp_path, field, value, kept):
    path = save_table(make_table(), tmp_path / "a.json")
    out = tmp_path / "b.json"
    run("declare", path, "--field", field, "--value", value, "--reason", "r", "--out", out)
    assert [(one.field, one.value) for one in load_table(out).declarations] == [(field, kept)]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lower_ratio": 0.2, "effect_ratio": 0.2, "upper_ratio": 0.1}, "lower must be no more"),
        ({"lower_ratio": 0.2, "effect_ratio": 0.1}, "effect must be no less than lower"),
        ({"effect_ratio": 0.3, "upper_ratio": 0.2}, "effect must be no more than upper"),
        ({"pairs": 2, "passages": 3}, "passages must be no more than its pairs"),
        ({"pairs": 10**20}, "pairs must be at most"),
        ({"ring_cells": 16 * 10**30}, "ring_cells must be at most"),
    ],
)
def test_an_entry_that_contradicts_itself_is_no_table(tmp_path, fields, words):
    table = make_table(entries=(make_entry(131_072, "on", **fields),))
    with pytest.raises(TableError, match=words):
        save_table(table, tmp_path / "a.json")
    bare = make_entry(
        131_072, "on", 32_768, verdict="undecided", effect_ratio=None, lower_ratio=0.1
    )
    with pytest.raises(TableError, match="effect must be a number where it has a bound"):
        save_table(make_table(entries=(bare,)), tmp_path / "a.json")


def test_a_table_cannot_end_before_it_began(tmp_path):
    wrong = PROVENANCE | {"measured_to": "2025-12-31T00:00:00Z"}
    with pytest.raises(TableError, match="measured_to must be no earlier than measured_from"):
        save_table(make_table(provenance=wrong), tmp_path / "a.json")
    wrong = PROVENANCE | {"measured_to": "2026-02-30T00:00:00Z"}
    with pytest.raises(TableError, match="is no instant"):
        save_table(make_table(provenance=wrong), tmp_path / "a.json")


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [("a b", "b c", {"a", "b", "c"}), ("a", None, None), (None, None, None), ("a", 5, None)],
)
def test_a_joined_table_names_its_documents_where_all_do(
    one: object, other: object, both: set[str] | None
) -> None:
    first = make_table(
        entries=make_table().entries[2:], provenance=PROVENANCE | ({DOCUMENTS: one} if one else {})
    )
    second = make_table(
        entries=make_table().entries[1:2],
        provenance=PROVENANCE | ({DOCUMENTS: other} if other else {}),
    )
    assert merge_tables(named(first, second)).documents == both
