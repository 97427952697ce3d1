"""`strata bench`, as a person types it."""

from __future__ import annotations

import json
import secrets
import sys

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from strata.cli.bench import report
from strata.cli.main import app
from strata.kv.transfer import Transfer
from strata.session import Session
from tests.conftest import TINY


def bench(*words: str) -> Result:
    return CliRunner().invoke(app, ["bench", *words])


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU says")
@pytest.mark.parametrize("name", ["gather", "experts"])
def test_without_a_gpu_it_is_one_sentence(name: str) -> None:
    result = bench(name)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == (
        f"error: strata bench {name} measures a CUDA device, and this machine has none\n"
    )


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--page-bytes", "4KiB,100"), "--page-bytes: '100'"),
        (("--page-bytes", "0"), "--page-bytes: '0'"),
        (("--page-bytes", "many"), "--page-bytes: 'many'"),
        (("--pages", "1,-2"), "--pages: '-2'"),
        (("--pages", ""), "--pages: ''"),
        (("--samples", "4"), "--samples"),
        (("--json", "nowhere/out.json"), "--json: nowhere is no folder"),
    ],
)
def test_a_switch_that_cannot_be_is_named(words: tuple[str, ...], named: str) -> None:
    result = bench("gather", *words)
    assert result.exit_code == 2
    assert named in result.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--multiples", "x"), "--multiples: 'x'"),
        (("--multiples", "0"), "--multiples: '0'"),
        (("--select", "0"), "--select: 0 reads everything"),
    ],
)
def test_evict_names_its_own_switches(words: tuple[str, ...], named: str) -> None:
    result = bench("evict", *words)
    assert result.exit_code == 2
    assert named in result.stderr


@pytest.mark.gpu
def test_every_figure_is_written() -> None:
    result = bench("gather", "--page-bytes", "4KiB,16KiB", "--pages", "0,1,200", "--json", "-")
    assert result.exit_code == 0, result.output
    written = json.loads(result.stdout)
    assert [(f["page_bytes"], f["pages"]) for f in written["figures"]] == [
        (size, pages) for size in (4096, 16384) for pages in (0, 1, 200)
    ]
    assert written["plain_copy_gb_per_s"] > 0
    for figure in written["figures"]:
        assert 0 < figure["min_us"] <= figure["us"] <= figure["max_us"]
        bytes_moved = figure["page_bytes"] * figure["pages"]
        assert figure["gb_per_s"] == pytest.approx(bytes_moved / figure["us"] / 1e3)


TINY_ON_CPU = ("--model", str(TINY), "--device", "cpu")


def is_spread(value: dict[str, float]) -> bool:
    return 0 < value["min"] <= value["median"] <= value["max"]


def test_decode_prints_a_row_an_arm_and_writes_the_same() -> None:
    words = ("--depth", "128,256", "--spec", "0,2", "--ring", "0,96", "--select", "32")
    shown = bench("decode", *words, "--max-new", "32", *TINY_ON_CPU)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.count("32 of 32 as the first") == 8
    assert "median (least-most) of 5 repeats" in shown.stdout
    result = bench("decode", *words, "--max-new", "32", *TINY_ON_CPU, "--json", "-")
    written = json.loads(result.stdout)
    figures = written["figures"]
    assert [(f["depth"], f["drafts"], f["ring_cap"]) for f in figures] == [
        (depth, drafts, ring) for depth in (128, 256) for drafts in (0, 2) for ring in (0, 96)
    ]
    for figure in figures:
        assert is_spread(figure["tok_s"])
        assert is_spread(figure["rounds_s"])
        product = figure["rounds_s"]["median"] * figure["tokens_round"]
        assert figure["tok_s"]["median"] == pytest.approx(product)
        assert figure["profile"] is None
        assert figure["kv"]["lookups"] == figure["kv"]["hits"] + figure["kv"]["misses"]
    assert figures[0]["ring_cells"] > figures[1]["ring_cells"] == 96


def test_decode_obeys_a_budget_and_a_window() -> None:
    words = ("--depth", "64", "--spec", "1,auto", "--mtp-window", "32", "--max-new", "32")
    result = bench("decode", *words, "--vram-budget", "1MiB", *TINY_ON_CPU, "--json", "-")
    assert result.exit_code == 0, result.output
    written = json.loads(result.stdout)
    assert written["vram_budget_bytes"] == 1 << 20
    assert [f["drafts"] for f in written["figures"]] == [1, "auto"]
    assert all(f["expert_slots"] < 16 for f in written["figures"])


def test_prefill_counts_from_nothing() -> None:
    words = ("--depth", "64,128", "--vram-budget", "none,1MiB")
    shown = bench("prefill", *words, *TINY_ON_CPU)
    assert shown.exit_code == 0, shown.output
    assert "first token ms" in shown.stdout
    written = json.loads(bench("prefill", *words, *TINY_ON_CPU, "--json", "-").stdout)
    figures = written["figures"]
    assert [(f["depth"], f["budget_bytes"]) for f in figures] == [
        (depth, budget) for depth in (64, 128) for budget in (None, 1 << 20)
    ]
    for f in figures:
        keys = ("prompt_tok_s", "ttft_ms", "session_ms", "first_token_ms")
        assert all(is_spread(f[key]) for key in keys)
        assert f["ttft_ms"]["max"] > f["depth"] / f["prompt_tok_s"]["max"] * 1e3
        assert f["ttft_ms"]["max"] > f["session_ms"]["min"] + f["first_token_ms"]["min"]


def test_evict_writes_both_ends_of_a_continuation() -> None:
    words = ("--depth", "512", "--select", "64", "--max-new", "128", "--multiples", "1,2")
    shown = bench("evict", *words, *TINY_ON_CPU)
    assert shown.exit_code == 0, shown.output
    assert "seeded: first 32" in shown.stdout
    written = json.loads(bench("evict", *words, *TINY_ON_CPU, "--json", "-").stdout)
    assert written["rounds"] == 127
    figures = written["figures"]
    assert len(figures) == 2 * 4 * 2
    assert {f["policy"] for f in figures} == {"clock", "lru", "lrfu", "belady"}
    assert all(0 <= f[k] <= 1 for f in figures for k in ("first_ratio", "last_ratio", "all_ratio"))


def test_peers_take_turns_and_draw_the_same_tokens() -> None:
    pytest.importorskip("transformers")
    words = ("--depth", "64", "--spec", "0,1", "--ring", "48", "--max-new", "16")
    shown = bench("peers", *words, "--peers", "dynamic", *TINY_ON_CPU)
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.count("16 of 16") == 3
    written = json.loads(bench("peers", *words, *TINY_ON_CPU, "--json", "-").stdout)
    assert written["ring_cap"] == 48
    figures = {f["arm"]: f for f in written["figures"]}
    assert list(figures) == [
        "strata, drafts 0",
        "strata, drafts 1",
        "transformers, dynamic",
        "transformers, mtp",
    ]
    for figure in figures.values():
        assert is_spread(figure["tok_s"])
        assert figure["error"] == ""
        assert figure["agreeing"] == 16
        ours = figures["strata, drafts 0"]["tok_s"]["median"]
        ratio = figure["ratios"]["strata, drafts 0"]
        assert is_spread(ratio)
        assert ratio["median"] == pytest.approx(ours / figure["tok_s"]["median"])


def test_peers_without_transformers_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = bench("peers", *TINY_ON_CPU)
    assert result.exit_code == 2
    assert "pip install 'transformers>=5.24'" in result.stderr


def test_a_peer_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    from strata.bench import peers

    monkeypatch.setitem(peers.PEERS, "mtp", peers.Peer(options={"num_beams": -1}))
    words = ("--depth", "64", "--spec", "0", "--max-new", "16", "--peers", "mtp")
    result = bench("peers", *words, *TINY_ON_CPU)
    assert result.exit_code == 0, result.output
    assert "failed" in result.stdout
    assert "warning: transformers, mtp: " in result.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("decode", "--depth", "0"), "--depth: '0'"),
        (("decode", "--depth", "1K,"), "--depth: ''"),
        (("decode", "--spec", "0,9"), "--spec: '9'"),
        (("decode", "--spec", "x"), "--spec: 'x'"),
        (("decode", "--ring", "-1"), "--ring: '-1'"),
        (("decode", "--prefetch", "none,some"), "--prefetch: 'some'"),
        (("decode", "--max-new", "31"), "--max-new"),
        (("decode", "--repeats", "4"), "--repeats"),
        (("decode", "--vram-budget", "much"), "--vram-budget: 'much'"),
        (("decode", "--model", "nowhere"), "nowhere is no folder"),
        (("prefill", "--vram-budget", "none,x"), "--vram-budget: 'x'"),
        (("prefill", "--json", "no/where.json"), "--json: no is no folder"),
        (("experts", "--rows", "0"), "--rows: '0'"),
        (("experts", "--misses", "-1"), "--misses: '-1'"),
        (("peers", "--peers", "dynamic,fast", "--device", "cpu"), "--peers: 'fast'"),
        (("peers", "--peers", "static", "--device", "cpu"), "static needs a GPU"),
        (("peers", "--depth", "1M", "--device", "cpu"), "--depth: 1048576 cells"),
    ],
)
def test_a_switch_of_any_bench_is_named(words: tuple[str, ...], named: str) -> None:
    result = bench(*words)
    assert result.exit_code == 2, result.output
    assert named in result.stderr


def test_a_bar_waits_before_it_shows_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for quiet_s, shown in ((1e9, 0), (0.0, 1)):
        monkeypatch.setattr(report, "QUIET_S", quiet_s)
        with report.progress("counting", 3) as step:
            step()
            bar = report._LateProgress()
            assert len(list(bar.get_renderables())) == shown


@pytest.mark.parametrize("name", ["decode", "prefill", "evict"])
def test_ctrl_c_in_a_repeat_ends_the_bench(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "_run_rounds", interrupt)
    words = () if name == "prefill" else ("--select", "16")
    result = bench(name, "--depth", "64", *words, *TINY_ON_CPU)
    assert result.exit_code == 130
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1] == "interrupted"


def test_no_speed_is_printed_while_the_engine_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Transfer.bring_in

    def wrong(self: Transfer, layer: int, pages: torch.Tensor, slots: torch.Tensor) -> None:
        if len(pages) > 5:  # the seed; a miss leaves its slot as it was
            right(self, layer, pages, slots)

    monkeypatch.setattr(secrets, "randbits", lambda _: 7)
    monkeypatch.setattr(Transfer, "bring_in", wrong)
    for name in ("decode", "prefill"):
        result = bench(name, "--depth", "64", *TINY_ON_CPU)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert result.stderr.startswith("error: the engine's logits with a ring of 96 cells")


@pytest.mark.gpu
def test_decode_on_a_gpu_says_what_the_parts_take() -> None:
    words = ("--depth", "2K", "--spec", "0,2", "--ring", "512", "--select", "128")
    result = bench("decode", *words, "--max-new", "64", "--vram-budget", "40MiB", "--json", "-")
    assert result.exit_code == 0, result.output
    for figure in json.loads(result.stdout)["figures"]:
        assert figure["captured"]
        parts = figure["profile"]["parts"]
        for part in ("resolve", "gather", "expert fetch", "selection", "attention"):
            assert parts[part]["us_round"] > 0, part
        assert (parts["drafter"]["us_round"] > 0) == (figure["drafts"] > 0)


@pytest.mark.gpu
def test_experts_counts_what_misses() -> None:
    result = bench("experts", "--rows", "1,4", "--misses", "0,2", "--json", "-")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)["figures"]
    assert [(f["op"], f["rows"]) for f in figures] == [
        (op, rows) for rows in (1, 4) for _ in (0, 2) for op in ("product", "fetch")
    ]
    for figure in figures:
        assert 0 < figure["min_us"] <= figure["us"] <= figure["max_us"]
    assert [round(f["misses"]) for f in figures if f["op"] == "fetch"] == [0, 2, 0, 2]
