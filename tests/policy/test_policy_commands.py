"""`strata policy`, as a person types it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from policy_samples import ON_TINY, conditions_of, make_entry, make_request, make_table
from typer.testing import CliRunner

from strata.cli.policy import app
from strata.policy import POLICIES, choose_ring, load_table, make_tiers, save_table
from strata.units import format_cells

SEED = Path(__file__).resolve().parents[2] / "data" / "seed" / "decode_by_ring.csv"
RINGS = ["--kv-resident", "49152", "--kv-ring-default", "32768"]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch, tmp_path):
    """Keep the caller's variables and tables out of the tests."""
    for name in ("POLICY", "ADAPT", "TABLE"):
        monkeypatch.delenv(f"STRATA_KV_RING_{name}", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data-home"))
    monkeypatch.setattr("strata.policy.search.shipped_folder", lambda: tmp_path / "shipped")


def run(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    if code == 2:
        assert isinstance(result.exception, SystemExit)
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
    return result


def explain(*words, code=0):
    return run("explain", *ON_TINY, "--spec", 1, *RINGS, *words, code=code)


@pytest.fixture
def table_file(tmp_path):
    return save_table(make_table(), tmp_path / "table.json")


@pytest.fixture
def here(tiny):
    """Return a function that makes a table for the tiny model on this machine."""

    def make(**fields):
        return make_table(**({"fingerprint": conditions_of(tiny)} | fields))

    return make


@pytest.fixture
def here_file(here, tmp_path):
    return save_table(here(), tmp_path / "here.json")


@pytest.mark.parametrize(
    ("policy", "depth", "line"),
    [
        ("fixed", "32K", "KV ring fixed: 49152 (the cap)"),
        ("depth", "40000", "KV ring depth: 40272 (grown to need 40272)"),
        ("adapt", "1024", "KV ring adaptive: 49152 -> 32768"),
        ("adapt", "48864", "KV ring adaptive: 49152 -> 32768"),
        ("adapt", "48880", "KV ring adapt: 49152 (need 49152 reaches the cap 49152)"),
        ("adapt", "128K", "KV ring adapt: 49152 (need 131344 reaches the cap 49152)"),
    ],
)
def test_explain_prints_the_line_of_a_session(policy, depth, line):
    assert explain("--policy", policy, "--depth", depth).stdout.splitlines()[0] == line


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prompt", [1_024, 32_768, 131_072])
def test_explain_decides_as_choose_ring_does(policy, prompt, here_file):
    table = load_table(here_file)
    decision = choose_ring(
        make_request(
            prompt,
            policy=policy,
            table=table,
            table_origin=str(here_file),
            fingerprint=table.fingerprint,
        )
    )
    result = explain("--policy", policy, "--depth", prompt, "--table", here_file)
    assert result.stdout.splitlines()[0] == decision.log_line


def test_explain_says_why():
    words = explain("--policy", "adapt", "--depth", "1K").stdout
    for part in ("need", "floor", "cap", "minimum", "1 a round", "window"):
        assert part in words


def test_explain_takes_from_the_table_what_moves_speed_alone_and_nothing_else(here, tmp_path):
    fingerprint = replace(here().fingerprint, spec=2, mtp_window=512, victims="lrfu")
    path = save_table(here(fingerprint=fingerprint), tmp_path / "t.json")
    words = ["explain", *ON_TINY, "--policy", "learned", "--depth", "128K", "--table", path]
    words += ["--kv-resident", 49152]
    result = run(*words)
    assert result.stdout.startswith("KV ring learned: 49152 (tier 128K, drafter on, expected gain ")
    line = result.stdout.splitlines()[0]
    assert line.endswith(
        f"table {path}, which sets drafts 2, window 512, victims lrfu, default ring 32768)"
    )
    assert "drafts       2 a round" in result.stdout
    assert "window       512 cells" in result.stdout
    assert result.stderr == ""
    for named, clause in (
        (["--spec", 1], "spec is 2 in the table and 1 here"),
        (["--mtp-window", 0], "mtp_window is 512 in the table and 0 here"),
        (["--kv-evict", "clock"], "victims is lrfu in the table and clock here"),
        (["--kv-ring-default", "8K"], "default_ring is 32768 in the table and 8192 here"),
        (["--kv-select", "2K"], "select is 0 in the table and 2048 here"),
    ):
        told = run(*words, *named)
        assert "(the table does not apply: the default ring)" in told.stdout
        assert f"does not apply: {clause}; the default ring" in told.stderr
        assert "which sets" not in told.stdout
    same = ["--spec", 2, "--mtp-window", 512, "--kv-evict", "lrfu", "--kv-ring-default", "32K"]
    assert "which sets" not in run(*words, *same).stdout


def test_explain_reads_the_environment_and_finds_exported_tables(monkeypatch, here, tmp_path):
    monkeypatch.setenv("STRATA_KV_RING_ADAPT", "yes")
    assert "adaptive" in explain("--depth", "1K").stdout
    monkeypatch.setenv("STRATA_KV_RING_POLICY", "learned")
    result = explain("--depth", "128K")
    assert "overrides STRATA_KV_RING_ADAPT (adapt)" in result.stderr
    assert "found no table" in result.stderr
    save_table(here(), tmp_path / "data-home/strata/policies/mine.json")
    result = explain("--depth", "128K")
    assert result.stdout.startswith("KV ring learned: 49152")
    assert "mine.json" in result.stdout


def test_explain_follows_a_swap_in_the_table(here, tmp_path):
    lines = []
    for rings in ((8_192, 16_384), (16_384, 8_192)):
        entries = (make_entry(1_024, "on", rings[0]), make_entry(131_072, "on", rings[1]))
        tiers = make_tiers([1_024, 131_072])
        path = save_table(here(tiers=tiers, entries=entries), tmp_path / "swap.json")
        lines.append(
            [
                explain("--policy", "learned", "--depth", depth, "--table", path).stdout.split()[3]
                for depth in ("1K", "128K")
            ]
        )
    assert lines == [["8192", "16384"], ["16384", "8192"]]


def test_explain_takes_the_default_ring_of_the_device_that_is_there():
    words = ["explain", *ON_TINY, "--policy", "adapt", "--depth", "64K", "--kv-resident", "128K"]
    assert "131072 -> 1024" in run(*words).stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_explain_answers_for_no_device_that_is_not_there():
    result = run("explain", "--depth", "4K", "--device", "cuda", code=2)
    assert result.stderr.startswith("error: --device: 'cuda' is not there")


def test_explain_zero_and_the_drafter_off(here_file):
    table_file = here_file
    result = explain(
        "--policy", "learned", "--depth", "1K", "--kv-resident", 0, "--table", table_file
    )
    assert result.stdout.startswith("KV ring none: 1296 (the whole context is resident")
    assert "not consulted" in result.stderr
    result = explain("--policy", "learned", "--depth", "128K", "--spec", 0, "--table", table_file)
    assert "tier 128K, drafter off, undecided: the default ring" in result.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--depth", "many"], "--depth: 'many' is not a number of cells"),
        (["--depth", "0"], "--depth: 0 cells are no prompt"),
        (["--depth", "-5"], "--depth: -5 cells are no prompt"),
        (["--depth", "99999999999"], "--depth: "),
        (["--max-new", "0"], "--max-new: 0 is not a number of new tokens"),
        (["--kv-resident", "-1"], "--kv-resident: '-1' is negative"),
        (["--kv-resident", "lots"], "--kv-resident: 'lots' is not a number"),
        (["--kv-ring-default", "-1"], "--kv-ring-default: -1 is negative"),
        (["--kv-page", "0"], "--kv-page: 0 is outside 1 to 1024 cells"),
        (["--policy", "greedy"], "--kv-ring-policy: 'greedy' is no ring policy"),
        (["--spec", "9"], "--spec: 9 is outside 0 to 7"),
        (["--spec", "many"], "--spec: 'many' is neither"),
        (["--spec", "2", "--no-mtp"], "--no-mtp and --spec 2 contradict"),
        (["--kv-select", "depth/x"], "--kv-select: 'depth/x'"),
        (["--kv-select", ""], "--kv-select: ''"),
        (["--mtp-window", "-1"], "--mtp-window: -1 is negative"),
        (["--vram-budget", "some"], "--vram-budget: 'some' is not a size"),
        (["--max-context", "512"], "--max-context: 512 cells are fewer than the 1296 needed"),
        (["--device", "tpu"], "--device: 'tpu' is not auto, cpu, cuda or cuda:N"),
        (
            ["--policy", "learned", "--table", "/none.json"],
            "policy table /none.json does not exist",
        ),
        (["--policy", "learned", "--table", ""], "--kv-ring-table: an empty path names no table"),
    ],
)
def test_explain_refuses_what_cannot_be_in_one_sentence(words, sentence):
    result = explain("--depth", "1K", *words, code=2)
    assert result.stderr.startswith(f"error: {sentence}")
    assert result.stderr.count("\n") == 1


def test_show_prints_conditions_and_entries(table_file):
    words = run("show", table_file).stdout
    for part in ("Device A", "bfloat16", "49152", "128K", "+16.0% [+3.7%, ...]", "undecided"):
        assert part in words


@pytest.mark.parametrize("odd", [False, True])
def test_show_gives_each_reason_once_with_the_entries_that_share_it(odd, tmp_path):
    table = make_table()
    reasons = {f"decision_{one.tier_cells}_{one.mode}": "Holm over 4" for one in table.entries}
    first = table.entries[0]
    if odd:
        reasons[f"decision_{first.tier_cells}_{first.mode}"] = "failed in 1 of 4 pairs"
    table = replace(table, provenance={**table.provenance, **reasons})
    words = run("show", save_table(table, tmp_path / "reasons.json")).stdout
    assert words.count("Holm over 4") == 1
    assert "decision_" not in words
    place = f"{format_cells(first.tier_cells)} {first.mode}"
    assert (f"decided           {place}: failed in 1 of 4 pairs" in words) == odd


def test_validate_says_what_is_there(table_file):
    assert "valid, 3 tiers, 4 entries" in run("validate", table_file).stdout


@pytest.mark.parametrize("command", ["show", "validate"])
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "does not exist"),
        ("{", "is not JSON"),
        ('{"schema": "strata.ring-policy/2"}', "which this version cannot read"),
    ],
)
def test_a_bad_table_is_one_sentence(command, content, sentence, tmp_path):
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_text(content)
    result = run(command, path, code=2)
    assert result.stderr.startswith(f"error: policy table {path}")
    assert sentence in result.stderr


def test_a_damaged_table_is_one_sentence(table_file):
    document = json.loads(table_file.read_text())
    document["margin"] = 0.5
    table_file.write_text(json.dumps(document))
    result = run("validate", table_file, code=2)
    assert "do not match their own sha256" in result.stderr


def test_backtest_prints_what_was_chosen_and_measured():
    pytest.importorskip("pandas")
    words = run("backtest", SEED, *RINGS, "--max-new", 256).stdout
    found = {}
    row = ""
    for line in words.splitlines():
        fields = re.split(r"\s{2,}", line.strip())
        if fields[0].startswith("v020"):
            row, fields = fields[0], fields[3:]
        if len(fields) == 3:
            found[row, fields[0]] = (int(fields[1]), fields[2])
    assert len(found) == 10 * 5
    assert found["v020-depth-32k", "fixed"] == (49_152, "-9.1 % (as recorded)")
    assert found["v020-adapt-32k", "adapt"] == (32_768, "0 % (control's ring)")
    assert found["v020-adapt-128k", "adapt"] == (49_152, "+15.3 % (as recorded)")
    for (row, policy), (ring, _) in found.items():
        if policy == "learned (in sample)":
            assert ring == (49_152 if row.endswith("128k") else 32_768)
    assert "lower bound +3.7%" in words


def test_backtest_refuses_a_bad_file(tmp_path):
    pytest.importorskip("pandas")
    bad = tmp_path / "bad.csv"
    bad.write_text("id\n1\n")
    assert run("backtest", bad, *RINGS, code=2).stderr.startswith(f"error: {bad}, line 1")
    run("backtest", tmp_path / "none.csv", *RINGS, code=2)
