"""`strata generate` as a user types it: the same tokens whatever is resident."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest
import torch
from generate_samples import COMMAND, generate, spawn, stats

from strata.lm import LanguageModel
from tests.conftest import TINY, prompt_of

CELLS, NEW = 900, 64
KEYS = (
    "tokens token_hash text prompt_tokens prefill_tok_s ttft_ms decode_tok_s tpot_p50_ms "
    "tpot_p99_ms rounds rounds_per_s tokens_per_round accepted drafted ring_chosen_cells "
    "ring_cells ring_policy ring_reason spec mtp_window_cells kv_lookups kv_hits kv_misses "
    "kv_bytes kv_overflows ledger model_hash"
)
SAMPLED = ["--temperature", "0.9", "--top-k", "40", "--top-p", "0.95", "--seed", "3"]

POINTS = [
    ["--kv-resident", "0", "--spec", "0"],
    ["--kv-resident", "1", "--spec", "3", "--mtp-window", "8"],
    ["--kv-resident", "1024", "--spec", "auto"],
    ["--kv-resident", "256", "--no-mtp", "--vram-budget", "1200K"],
    ["--kv-resident", "512", "--spec", "7", "--mtp-window", "0", "--kv-page", "3"],
    ["--vram-budget", "1100K", "--kv-evict", "lrfu", "--spec-min-p", "0.5"],
    ["--kv-ring-policy", "adapt", "--kv-resident", "2K", "--spec", "1", "--mtp-window", "5000"],
    ["--kv-ring-policy", "depth", "--kv-resident", "512", "--kv-page", "1"],
    ["--max-context", "4K", "--kv-resident", "300", "--kv-page", "100", "--spec", "2"],
    ["--kv-select", "64K", "--kv-resident", "128", "--kv-evict", "lrfu"],
]


@pytest.fixture(scope="module")
def prompt(tiny: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompt") / "prompt.txt"
    path.write_text(tiny.tokenizer.decode(prompt_of(tiny, CELLS, seed=7)), encoding="utf-8")
    return path


def test_ten_points_of_the_matrix_as_commands(prompt: Path, tmp_path: Path) -> None:
    hashes, rings = {}, set()
    for i, point in enumerate(POINTS):
        target = tmp_path / f"{i}.json"
        words = ["--file", prompt, "--max-new", NEW, "--ignore-eos", "--json", target]
        # The first and the last in a process of their own, as a user's are, the rest in this one.
        if i in (0, len(POINTS) - 1):
            done = spawn(*words, *SAMPLED, *point)
            assert done.returncode == 0, done.stderr
        else:
            done = generate(*words, *SAMPLED, *point)
            assert done.exit_code == 0, done.stderr
        result = json.loads(target.read_text())
        assert {*KEYS.split()} <= result.keys()
        assert done.stdout == result["text"] + "\n"
        assert len(result["tokens"]) == NEW
        packed = struct.pack(f"<{NEW}i", *result["tokens"])
        assert result["token_hash"] == hashlib.sha256(packed).hexdigest()
        assert result["kv_lookups"] == result["kv_hits"] + result["kv_misses"]
        hashes[" ".join(point)] = result["token_hash"]
        rings.add(result["ring_cells"])
    assert len(set(hashes.values())) == 1, hashes
    assert len(rings) >= 6, "the points must differ in what they reserve"


def test_a_selection_gives_the_same_tokens_whatever_the_ring(prompt: Path) -> None:
    words = ["--file", prompt, "--max-new", NEW, "--ignore-eos", "--kv-select", "160"]
    results = [
        stats(*words, *rest)
        for rest in (
            ["--kv-resident", "0"],
            ["--kv-resident", "1"],
            ["--kv-resident", "1", "--kv-evict", "lrfu", "--spec", "5"],
            ["--kv-resident", "400", "--vram-budget", "1400K"],
            ["--kv-select", "160", "--spec", "0"],
        )
    ]
    assert len({result["token_hash"] for result in results}) == 1
    assert results[1]["kv_misses"] > 0 == results[0]["kv_misses"]
    dense = stats(*words, "--kv-select", "0")
    by_depth = stats(*words, "--kv-select", "depth/1")
    assert by_depth["token_hash"] == dense["token_hash"]


def test_json_to_stdout_is_nothing_else(prompt: Path) -> None:
    done = spawn("-", "--max-new", 5, "--json", "-", stdin=prompt.read_bytes())
    assert done.returncode == 0
    result = json.loads(done.stdout)
    assert result["prompt_tokens"] == CELLS
    assert "KV ring fixed" in done.stderr


def test_a_prompt_from_each_source_is_the_same_prompt(prompt: Path) -> None:
    text = prompt.read_text(encoding="utf-8")
    runs = [
        stats("--file", prompt, "--max-new", 6),
        stats("--max-new", 6, stdin=text),
        stats("-", "--max-new", 6, stdin=text),
        stats(text, "--max-new", 6),
    ]
    assert len({(run["token_hash"], run["prompt_tokens"]) for run in runs}) == 1


@pytest.mark.parametrize("new", [1, 2])
def test_rates_that_one_token_cannot_give_are_null(new: int) -> None:
    result = stats("def f(", "--max-new", new, "--ignore-eos")
    assert len(result["tokens"]) == new
    rates = ("decode_tok_s", "tpot_p50_ms", "tpot_p99_ms", "rounds_per_s", "tokens_per_round")
    assert all((result[rate] is None) == (new == 1) for rate in rates)
    assert result["prefill_tok_s"] > 0 < result["ttft_ms"]


def test_stdout_has_the_text_and_stderr_the_rest() -> None:
    result = generate("import ", "--max-new", 12, "--ignore-eos", "--stop", "\x00")
    assert result.exit_code == 0
    assert "KV ring fixed" in result.stderr
    assert "tok/s" in result.stderr
    said = result.stderr.count("no CUDA device: running on the CPU in float32")
    assert said == (0 if torch.cuda.is_available() else 1)
    assert "tok/s" not in result.stdout
    assert result.stdout == stats("import ", "--max-new", 12, "--ignore-eos")["text"] + "\n"


def test_stop_strings_may_be_repeated(prompt: Path) -> None:
    whole = stats("--file", prompt, "--max-new", 40, "--ignore-eos")["text"]
    stops = [whole[20:23], whole[9:12]]
    words = [word for stop in stops for word in ("--stop", stop)]
    done = stats("--file", prompt, "--max-new", 40, "--ignore-eos", *words)
    assert done["stopped"] == "stop"
    assert done["text"] == whole[: min(whole.index(stop) for stop in stops)]


def test_a_terminal_that_is_not_utf_8(tmp_path: Path) -> None:
    """Hot sampling gives bytes that are no text, and a replacement character is not ASCII."""
    assert COMMAND is not None
    target = tmp_path / "run.json"
    words = [COMMAND, "generate", "--model", str(TINY), "def f(", "--max-new", "200"]
    words += ["--temperature", "9", "--ignore-eos", "--json", str(target)]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, capture_output=True, check=False, env=environ, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    text = json.loads(target.read_text(encoding="utf-8"))["text"]
    assert not text.isascii()
    assert done.stdout == (text + "\n").encode("ascii", "replace")


def test_ctrl_c_ends_with_what_there_is(prompt: Path, tmp_path: Path) -> None:
    """The JSON is written, the exit code is that of an interrupt, and nothing is a traceback."""
    assert COMMAND is not None
    target = tmp_path / "run.json"
    words = [COMMAND, "generate", "--model", str(TINY), "--file", str(prompt)]
    words += ["--max-new", "100000", "--ignore-eos", "--json", str(target)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    os.read(process.stdout.fileno(), 1)  # the first token is out
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 130, stderr.decode()
    assert b"Traceback" not in stderr
    result = json.loads(target.read_text())
    assert result["stopped"] == "interrupted"
    assert 0 < len(result["tokens"]) < 100_000
    assert result["text"].encode().endswith(stdout[-20:-1])


def test_a_reader_that_leaves_ends_the_run_quietly(prompt: Path) -> None:
    assert COMMAND is not None
    words = [COMMAND, "generate", "--model", str(TINY), "--file", str(prompt)]
    words += ["--max-new", "100000", "--ignore-eos"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        stderr = process.stderr.read()
    assert process.returncode == 141
    assert b"Traceback" not in stderr
    assert b"Exception ignored" not in stderr


@pytest.mark.parametrize(
    ("line", "to_both"),
    [
        ("--help", False),
        ("--version", False),
        ("policy explain --depth 4K --device cpu", False),
        (f"policy show {TINY.parent.parent}/golden/ring-policy-1.json", False),
        ("policy explain --depth x", True),
        ("policy no-such-command", True),
    ],
)
def test_a_pipe_that_nobody_reads_ends_every_command_alike(line: str, to_both: bool) -> None:
    """The help and errors of the parser, lines, tables, and errors sent after them: 141."""
    assert COMMAND is not None
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [COMMAND, *line.split()],
            stdout=closed, stderr=closed if to_both else subprocess.PIPE, check=False, timeout=120,
        )  # fmt: skip
    assert done.returncode == 141
    assert not done.stderr


def test_without_a_stdout_and_on_a_full_one(prompt: Path) -> None:
    """A shell that closed stdout, and a disk that is full: no traceback for either."""
    words = f"{COMMAND} generate --model {TINY} --file {prompt} --max-new 4"
    for command, code in ((f"{words} >&-", 0), (f"{COMMAND} --help >/dev/full", 2)):
        done = subprocess.run(["sh", "-c", command], capture_output=True, check=False)
        assert done.returncode == code, done.stderr
        assert b"Traceback" not in done.stderr
        assert b"Exception ignored" not in done.stderr


@pytest.mark.parametrize("where", ["prefill", "load_model"])
def test_ctrl_c_before_the_first_token(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    target = "strata.session.Session.prefill" if where == "prefill" else "strata.lm.load_model"
    monkeypatch.setattr(target, interrupt)
    result = generate("def f(")
    assert result.exit_code == 130
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1] == "interrupted"
