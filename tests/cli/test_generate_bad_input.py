"""Whatever is typed: one sentence, exit code 2, no traceback, no damaged file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import torch
from generate_samples import generate, one_sentence, refused, spawn, stats

from strata.files import write_whole
from strata.units import parse_bytes, parse_cells


@pytest.fixture(autouse=True)
def _no_policy_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLICY", "ADAPT", "TABLE"):
        monkeypatch.delenv(f"STRATA_KV_RING_{name}", raising=False)


LONG = "9" * 5_000


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--kv-resident", "-5"], "--kv-resident: '-5' is negative"),
        (["--kv-resident", "many"], "--kv-resident: 'many' is not a number"),
        (["--kv-resident", "1.5K"], "--kv-resident"),
        (["--kv-resident", "99999999999999"], "--kv-resident"),
        (["--kv-resident", LONG], "--kv-resident"),
        (["--kv-resident", ""], "--kv-resident"),
        (["--kv-ring-default", "-1"], "--kv-ring-default"),
        (["--kv-ring-default", "x"], "--kv-ring-default"),
        (["--kv-ring-policy", "best"], "best"),
        (["--kv-ring-policy", "learned", "--kv-ring-table", "/nowhere/t.json"], "/nowhere/t.json"),
        (["--kv-select", "-1"], "--kv-select: '-1' is negative"),
        (["--kv-select", "depth/0"], "--kv-select"),
        (["--kv-select", "depth/"], "--kv-select"),
        (["--kv-select", "depth/²"], "--kv-select"),
        (["--kv-select", f"depth/{LONG}"], "--kv-select"),
        (["--kv-select", "width/8"], "--kv-select"),
        (["--kv-page", "0"], "--kv-page: 0 is outside 1 to 1024"),
        (["--kv-page", "-16"], "--kv-page"),
        (["--kv-evict", "lru"], "--kv-evict: 'lru' is not one of clock, lrfu"),
        (["--kv-evict", ""], "--kv-evict: '' is not one of"),
        (["--prefetch", "x"], "--prefetch: 'x' is not one of none, pages, experts, all"),
        (["--kv-page", "1025"], "--kv-page"),
        (["--vram-budget", "0"], "cannot hold this session"),
        (["--vram-budget", "64"], "cannot hold this session"),
        (["--vram-budget", "-1G"], "--vram-budget"),
        (["--vram-budget", "lots"], "--vram-budget"),
        (["--vram-budget", LONG], "--vram-budget"),
        (["--vram-budget", "1e5000"], "--vram-budget"),
        (["--max-context", "0"], "--max-context: 0 cells are fewer"),
        (["--max-context", "-1"], "--max-context: -1 cells are fewer"),
        (["--max-context", "20"], "--max-context: 20 cells are fewer"),
        (["--max-context", "1000M"], "more than the model's 135168 positions"),
        (["--spec", "-1"], "--spec: -1 is outside 0 to 7"),
        (["--spec", "8"], "--spec: 8 is outside 0 to 7"),
        (["--spec", "some"], "--spec"),
        (["--spec", LONG], "--spec"),
        (["--spec", "2", "--no-mtp"], "contradict"),
        (["--spec-min-p", "1.5"], "--spec-min-p"),
        (["--spec-min-p", "nan"], "--spec-min-p"),
        (["--spec-min-p", "-0.1", "--spec", "0"], "--spec-min-p"),
        (["--mtp-window", "-4"], "--mtp-window: -4 is negative"),
        (["--mtp-window", "wide"], "--mtp-window"),
        (["--max-new", "0"], "--max-new: 0 is less than 1"),
        (["--max-new", "-7"], "--max-new"),
        (["--max-new", "200000"], "exceed the model's 135168 positions"),
        (["--max-new", "9" * 30], "exceed the model's"),
        (["--temperature", "-1"], "--temperature"),
        (["--temperature", "nan"], "--temperature"),
        (["--top-k", "-1"], "--top-k"),
        (["--top-p", "2"], "--top-p"),
        (["--min-p", "-1"], "--min-p"),
        (["--seed", "-1"], "--seed"),
        (["--stop", ""], "--stop: an empty text"),
        (["--seed", str(2**64)], "--seed"),
        (["--device", "tpu"], "--device"),
        (["--device", "cuda:99"], "cuda:99"),
        (["--device", ""], "--device"),
        (["--threads", "0"], "--threads"),
        (["--threads", "100000"], "--threads"),
        (["--json", "/nowhere/out.json"], "--json: /nowhere is no folder"),
        (["--json", "/"], "--json: / is a folder"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_switches_that_cannot_be(words: list[str], sentence: str) -> None:
    assert sentence in refused("def f(", *words)


BEFORE = ["--max-new 0", "--spec 8", "--spec -1", "--spec-min-p 1.5", "--mtp-window -4",
          "--kv-page 0", "--kv-ring-policy best", "--kv-ring-table /nowhere/t.json",
          "--temperature -1", "--seed -1", "--threads 0"]  # fmt: skip


@pytest.mark.parametrize("line", BEFORE)
def test_what_no_model_makes_right_is_refused_before_one_is_loaded(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strata.lm.load_model", _too_late)
    word, value = line.split()
    assert value in refused("def f(", word, value)


def test_a_passage_that_is_none_is_refused_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strata.lm.load_model", _too_late)
    assert "--passage" in refused("--passage", "512:x")


def _too_late(*args: object) -> None:
    raise AssertionError("a model was loaded first")


@pytest.mark.parametrize(
    "words",
    [
        ["--max-new", "ten"],
        ["--kv-page", "big"],
        ["--top-k", "1.5"],
        ["--temperature", "warm"],
        ["--no-such-switch"],
        ["one", "two"],
    ],
)
def test_words_that_the_parser_refuses(words: list[str]) -> None:
    result = generate("a", *words)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_prompts_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "binary").write_bytes(b"\x80\x81")
    assert "empty" in refused("")
    assert "empty" in refused()
    assert "empty" in refused("-", stdin="")
    assert "empty" in refused("--file", tmp_path / "empty")
    assert "not UTF-8" in refused("--file", tmp_path / "binary")
    assert "not UTF-8" in refused("a\udcffb")
    assert "not UTF-8" in refused("-", stdin=b"\xff\xfe")
    assert "nowhere" in refused("--file", tmp_path / "nowhere")
    assert str(tmp_path) in refused("--file", tmp_path)
    assert "give one" in refused("a", "--file", tmp_path / "empty")
    assert "give one" in refused("a", "--passage", "512")


@pytest.mark.parametrize(
    "spec", ["0", "-3", "x", "512:x", "512:-1", "512:²", f"512:{LONG}", ":", ""]
)
def test_passages_that_are_none(spec: str) -> None:
    assert "--passage" in refused("--passage", spec)


def test_a_prompt_longer_than_the_positions() -> None:
    sentence = refused("-", stdin="x y z " * 60_000)
    assert re.search(r"a prompt of \d+ and 256 new tokens exceed the model's 135168", sentence)


def test_the_least_budget_that_is_named_works_and_less_does_not() -> None:
    for switches in ([], ["--kv-select", "64"], ["--kv-page", "3"], ["--kv-select", "9999"]):
        sentence = refused("def f(", "--max-new", 3, "--vram-budget", "1K", *switches)
        ring = int(re.search(r"a ring of (\d+) cells", sentence)[1])
        assert ring <= 32, "the context is shorter than this"
        least = parse_bytes(re.search(r"is (\d+KiB)", sentence)[1], name="") // 1024
        done = stats(
            "def f(", "--max-new", 3, "--vram-budget", f"{least}K", *switches, "--kv-resident", 1
        )
        assert sum(done["ledger"].values()) <= least * 1024
        assert "cannot hold" in refused(
            "def f(", "--max-new", 3, "--vram-budget", f"{least - 1}K", *switches
        )


def test_a_budget_too_small_for_the_ring_that_was_asked_for() -> None:
    sentence = refused("def f(" * 99, "--vram-budget", "980K", "--kv-resident", 256)
    assert "does not fit the memory budget" in sentence


def test_a_ring_below_the_minimum_is_raised_with_one_warning() -> None:
    result = generate("def f(" * 40, "--kv-resident", 1, "--max-new", 2, "--json", "-")
    assert result.exit_code == 0
    warnings = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert "below the minimum ring of 32" in warnings[0]
    assert json.loads(result.stdout)["ring_cells"] == 32


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("--spec 0 --spec-min-p 0.5", "--spec-min-p does"),
        ("--no-mtp --mtp-window 64", "--mtp-window does"),
        ("--spec 0 --mtp-window 0 --spec-min-p 0.5", "--spec-min-p and --mtp-window do"),
        ("--spec 0 --mtp-window auto", ""),
        ("--spec 1 --mtp-window 64 --spec-min-p 0.5", ""),
    ],
)
def test_drafter_switches_without_a_drafter_are_said_to_do_nothing(line: str, given: str) -> None:
    result = generate("def f(", "--max-new", 2, *line.split())
    assert result.exit_code == 0
    warnings = [line for line in result.stderr.splitlines() if line.startswith("warning: ")]
    assert warnings == ([f"warning: {given} nothing: no drafter runs"] if given else [])


def test_more_threads_than_cores_are_taken_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr("strata.device._usable_cores", lambda: 2)
    try:
        for threads, warned in ((2, 0), (3, 1)):
            result = generate("def f(", "--max-new", 2, "--threads", threads)
            assert result.exit_code == 0
            assert result.stderr.count("warning: ") == warned
        assert "--threads 3 is more than the 2 CPU cores" in result.stderr
    finally:
        torch.set_num_threads(before)


def write_limit(size: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.mark.parametrize("existing", [True, False])
def test_a_full_disk_leaves_the_old_file_or_none(tmp_path: Path, existing: bool) -> None:
    target = tmp_path / "run.json"
    if existing:
        target.write_text("the old one")
    done = spawn("def f(", "--max-new", 3, "--json", target, before=lambda: write_limit(100))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1] == f"error: {target}: File too large"
    assert [path.name for path in tmp_path.iterdir()] == ([target.name] if existing else [])
    if existing:
        assert target.read_text() == "the old one"


def test_a_full_device_and_a_null_device(tmp_path: Path) -> None:
    result = generate("def f(", "--max-new", 3, "--json", "/dev/full")
    assert result.exit_code == 2
    assert result.stderr.strip().splitlines()[-1] == "error: /dev/full: No space left on device"
    assert generate("def f(", "--max-new", 3, "--json", "/dev/null").exit_code == 0
    assert Path("/dev/null").is_char_device(), "a device was replaced by a file"


def test_a_link_that_ends_in_itself_and_a_folder_that_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "ends in itself" in refused("def f(", "--json", loop)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        write_whole(loop, b"x")
    # Root may write anywhere.
    monkeypatch.setattr("os.access", lambda place, how, **_: how != os.W_OK)
    assert "may not be written to" in refused("def f(", "--json", tmp_path / "a.json")


def test_a_file_is_written_whole_and_through_links(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    assert generate("def f(", "--max-new", 3, "--json", link).exit_code == 0
    assert link.is_symlink()
    assert json.loads(real.read_text())["prompt_tokens"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "real.json"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
        with pytest.raises(OSError, match="No space left") as failure:
            write_whole(target, b"data")
    assert failure.value.filename == str(target)
    assert list(tmp_path.iterdir()) == []
    write_whole(target, b"data")
    assert target.read_bytes() == b"data"
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "no" / "folder", b"data")


@pytest.mark.parametrize(
    ("text", "cells"), [("0", 0), ("32768", 32768), ("32K", 32768), ("1m", 1 << 20), (" 5 ", 5)]
)
def test_cells_read_as_people_write_them(text: str, cells: int) -> None:
    assert parse_cells(text, name="") == cells


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MiB", 64 << 20), ("1.5G", 3 << 29), ("500MB", 500_000_000), ("7", 7), ("2k", 2048)],
)
def test_sizes_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text, name="") == size


def test_a_refusal_as_a_user_sees_it() -> None:
    done = spawn("def f(", "--kv-page", 0)
    assert "--kv-page" in one_sentence(done.returncode, done.stdout, done.stderr)
