"""The table file: a round trip, and a refusal for each way in which a file can be wrong."""

from __future__ import annotations

import copy
import json
import resource
import signal

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_samples import make_entry, make_table, tables

from strata.errors import TableError
from strata.policy import (
    dump_table,
    from_document,
    load_table,
    make_tiers,
    save_table,
    to_document,
)
from strata.policy.schema import check_schema, load_schema
from strata.policy.table_document import body_hash

IN_A_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@IN_A_FIXTURE
@given(table=tables())
def test_round_trip(table, tmp_path):
    path = save_table(table, tmp_path / "table.json")
    assert load_table(path) == table
    check_schema(json.loads(path.read_text(encoding="utf-8")))
    assert dump_table(load_table(path)) == path.read_text(encoding="utf-8")


@IN_A_FIXTURE
@given(data=st.data())
def test_one_damaged_byte_is_refused(data, tmp_path):
    """Only white space between tokens may become other white space: it carries no meaning."""
    table = make_table()
    path = save_table(table, tmp_path / "table.json")
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    was = content[place]
    content[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte != was))
    path.write_bytes(content)
    if was in b" \n" and content[place] in b" \n\r\t":
        assert load_table(path) == table
    else:
        with pytest.raises(TableError, match=r"table\.json"):
            load_table(path)


@IN_A_FIXTURE
@given(data=st.data())
def test_a_truncated_file_is_refused(data, tmp_path):
    path = save_table(make_table(), tmp_path / "table.json")
    content = path.read_bytes().rstrip()
    path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(TableError, match="is not JSON"):
        load_table(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TableError, match=r"none\.json does not exist"):
        load_table(tmp_path / "none.json")


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(TableError, match=r"cannot be read: Is a directory"):
        load_table(tmp_path)
    with pytest.raises(TableError, match=r"cannot be read"):
        load_table("a\0b")


@pytest.mark.parametrize(
    "content", [b"", b"hello", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000, b"1" * 5_000]
)
def test_what_is_not_json_is_refused(content, tmp_path):
    path = tmp_path / "table.json"
    path.write_bytes(content)
    with pytest.raises(TableError, match="is not JSON"):
        load_table(path)


@pytest.mark.parametrize("content", ["[]", "1", "null", '"text"'])
def test_json_that_is_no_object_is_refused(content, tmp_path):
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(TableError, match="the document must be an object"):
        load_table(path)


def test_a_huge_file_is_refused_unread(tmp_path):
    path = tmp_path / "table.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(TableError, match="larger than any table"):
        load_table(path)


@pytest.mark.parametrize("schema", ["strata.ring-policy/2", "strata.ring-policy/1 ", None, 1])
def test_another_schema_is_refused_before_anything_else(schema):
    document = to_document(make_table()) | {"schema": schema, "unknown": 1}
    with pytest.raises(TableError, match="which this version cannot read"):
        from_document(document)


def test_an_edited_body_is_refused_by_its_hash():
    document = to_document(make_table())
    document["entries"][2]["ring_cells"] = 65_536
    with pytest.raises(TableError, match="do not match their own sha256"):
        from_document(document)


def test_values_that_hash_to_nothing_are_refused():
    document = to_document(make_table())
    for value in (float("inf"), "\ud800"):
        document["environment"]["odd"] = value
        with pytest.raises(TableError, match="a value that no table can"):
            from_document(document)


def test_hash_ignores_white_space_and_key_order(tmp_path):
    document = to_document(make_table())
    turned = dict(reversed(document.items()))
    path = tmp_path / "table.json"
    path.write_text(json.dumps(turned))
    assert load_table(path) == make_table()


def test_the_published_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(load_schema())


REMOVE = object()
VIOLATIONS = [
    (("margin",), False, "margin must be a number"),
    (("created",), "yesterday", "created must be a UTC instant"),
    (("created",), REMOVE, "created is missing"),
    (("extra",), 1, "extra is not a field"),
    (("engine",), "0.1", "engine must be an object"),
    (("engine", "version"), "", "engine.version must be a string"),
    (("engine", "branch"), "x", "engine.branch is not a field"),
    (("fingerprint", "device"), 1, "fingerprint.device must be a string"),
    (("fingerprint", "device"), REMOVE, "fingerprint.device is missing"),
    (("fingerprint", "serial"), "x", "fingerprint.serial is not a field"),
    (("fingerprint", "kv_dtype"), "int4", "fingerprint.kv_dtype must be one of float32, bfloat16"),
    (("fingerprint", "page_cells"), 0, "fingerprint.page_cells must be a whole number"),
    (("fingerprint", "page_cells"), True, "fingerprint.page_cells must be a whole number"),
    (("fingerprint", "select"), "depth/0", "fingerprint.select must be 0, a number"),
    (("fingerprint", "spec"), "many", "fingerprint.spec must be a whole number"),
    (("fingerprint", "mtp_window"), -1, "fingerprint.mtp_window must be a whole number"),
    (("fingerprint", "victims"), "fifo", "fingerprint.victims must be one of clock, lrfu"),
    (("fingerprint", "vram_budget_bytes"), "1G", "fingerprint.vram_budget_bytes must be"),
    (("fingerprint", "context"), None, "fingerprint.context must be a whole number"),
    (("environment",), [], "environment must be an object"),
    (("provenance", "study"), REMOVE, "provenance.study is missing"),
    (("provenance", "measured_to"), "noon", "provenance.measured_to must be a UTC instant"),
    (("provenance", "plan_sha256"), 5, "provenance.plan_sha256 must be a string"),
    (("provenance", "nested"), {}, "provenance.nested must be a string"),
    (("default_ring_cells",), 1.5, "default_ring_cells must be a whole number"),
    (("margin",), -0.1, "margin must be a number"),
    (("margin",), 1, "margin must be a number"),
    (("tiers",), [], "tiers must be a list of at least one"),
    (("tiers",), {}, "tiers must be a list"),
    (("tiers", 0, "name_cells"), "1K", "tiers[0].name_cells must be a whole number"),
    (("tiers", 1), 5, "tiers[1] must be an object"),
    (("entries", 0, "mode"), "maybe", "entries[0].mode must be one of off, on"),
    (("entries", 0, "verdict"), "good", "entries[0].verdict must be one of better"),
    (("entries", 0, "ring_cells"), 0, "entries[0].ring_cells must be a whole number"),
    (("entries", 0, "effect"), "big", "entries[0].effect must be a number"),
    (("entries", 0, "effect"), -1, "entries[0].effect must be a number above -1.0"),
    (("entries", 0, "confidence"), 1, "entries[0].confidence must be a number"),
    (("entries", 0, "pairs"), -1, "entries[0].pairs must be a whole number"),
    (("entries", 0, "predicted"), 0, "entries[0].predicted must be true or false"),
    (("entries", 2, "lower"), 0, "entries[2].lower must be above 0"),
    (("entries", 2, "effect"), None, "entries[2].lower must be above 0"),
    (("declarations",), None, "declarations must be a list"),
    (("declarations",), [{}], "declarations[0].value is missing"),
]
MEANINGS = [
    (("fingerprint", "select"), "0\n", "fingerprint.select must be 0, a number"),
    (("default_ring_cells",), 32_770, "default_ring_cells 32770 is no multiple of 16"),
    (("tiers", 0, "upper_cells"), 2_049, "tiers[0].upper_cells must be 2048 in this place"),
    (("tiers", 0, "lower_cells"), 1, "tiers[0].lower_cells must be 0"),
    (("tiers", 1, "lower_cells"), 2_047, "tiers[1].lower_cells must be 2048"),
    (("entries", 0, "tier_cells"), 2_048, "entries[0].tier_cells must be the name of a tier"),
    (("entries", 3, "mode"), "on", "entries[3].mode must be in one entry only"),
    (("entries", 2, "ring_cells"), 49_153, "entries[2].ring_cells must be a multiple of 16"),
    (("entries", 2, "ring_cells"), 32_768, "entries[2].ring_cells must be other than the default"),
    (("entries", 0, "ring_cells"), 16_384, "entries[0].ring_cells must be equal to the default"),
]


def _changed(place, value):
    document = copy.deepcopy(to_document(make_table()))
    at = document
    for step in place[:-1]:
        at = at[step]
    if value is REMOVE:
        del at[place[-1]]
    else:
        at[place[-1]] = value
    document["sha256"] = body_hash(document)
    return document


@pytest.mark.parametrize(("place", "value", "words"), VIOLATIONS + MEANINGS)
def test_a_field_that_is_not_what_it_should_be_is_refused_with_its_place(place, value, words):
    with pytest.raises(TableError) as caught:
        from_document(_changed(place, value))
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(("place", "value", "words"), VIOLATIONS)
def test_the_published_schema_refuses_what_the_reader_refuses(place, value, words):
    with pytest.raises(TableError):
        check_schema(_changed(place, value))


@given(document=tables().map(to_document), data=st.data())
def test_what_the_schema_refuses_the_reader_refuses(document, data):
    """Change one value anywhere: the reader may be stricter than the schema, never laxer."""
    names = sorted(document)
    name = data.draw(st.sampled_from([name for name in names if name != "sha256"]))
    odd = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | st.text(max_size=3)
    at = document
    while isinstance(at[name], dict | list) and at[name] and data.draw(st.booleans()):
        at = at[name]
        name = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
    at[name] = data.draw(odd)
    document["sha256"] = body_hash(document)
    try:
        check_schema(document)
    except TableError:
        with pytest.raises(TableError):
            from_document(document)


def test_an_invalid_table_is_never_written(tmp_path):
    path = tmp_path / "table.json"
    bad = make_table(entries=(make_entry(7, "on"),))
    for table in (bad, make_table(tiers=()), make_table(environment={"set": {1}})):
        with pytest.raises(TableError):
            save_table(table, path)
    assert list(tmp_path.iterdir()) == []


def test_saving_replaces_the_whole_file_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "new" / "folder" / "table.json"
    save_table(make_table(), path)
    wider = make_table(tiers=make_tiers([1_024, 32_768, 131_072, 262_144]))
    save_table(wider, path)
    assert load_table(path) == wider
    assert [item.name for item in path.parent.iterdir()] == ["table.json"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_full_disk_leaves_the_old_table(tmp_path):
    path = save_table(make_table(), tmp_path / "table.json")
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        with pytest.raises(TableError, match="could not be written: File too large"):
            save_table(make_table(created="2027-01-01T00:00:00Z"), path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["table.json"]


def test_a_target_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TableError, match="could not be written"):
        save_table(make_table(), tmp_path / "file" / "table.json")
