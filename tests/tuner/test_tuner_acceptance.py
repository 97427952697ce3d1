"""Acceptance is counted apart from any time, by prompt, and held against a study's costs."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuner_samples import FACTS, SMALL_PLAN, all_pairs, make_records
from typer.testing import CliRunner

from strata.cli.tune import app
from strata.config import SamplingParams, SessionConfig, SpecConfig
from strata.errors import UsageError
from strata.lm import LanguageModel
from strata.models.inference import share_bounds
from strata.session import create_session
from strata.tuner.acceptance import (
    by_depth,
    count_drafts,
    prices_of,
    read_prompts,
)
from strata.tuner.arms import ArmGrid
from strata.tuner.plan import parse_plan
from strata.tuner.store import MemoryStore
from strata.tuner.store.duck import DuckStore
from strata.tuner.study import StudyRecord, create_study
from strata.tuner.workload import Conditions, PromptCount, Workload

TINY = Path(__file__).parent.parent / "data" / "tiny"
TEXT = "def main() -> None:\n    for name in names:\n        print(name, end=' ')\n" * 3


def count(depth: int, tries: list[int], hits: list[int], rounds: int = 20) -> PromptCount:
    return PromptCount(
        name="p", depth_cells=depth, rounds=rounds, tokens=40, tries=tries, hits=hits
    )


def test_rates_are_conditional_and_a_prompt_is_one_sample() -> None:
    counts = [count(100, [20, 10], [10, 5]), count(100, [10, 8], [8, 2], rounds=10)]
    (found,) = by_depth(counts)
    assert found.upper_cells == 128
    assert [rate.mean for rate in found.rates] == [
        pytest.approx((0.5 + 0.8) / 2), pytest.approx((0.5 + 0.25) / 2)
    ]  # fmt: skip
    assert found.accepted.mean == pytest.approx((15 / 20 + 10 / 10) / 2)
    assert found.accepted.passages == 2


def test_depths_fall_into_the_tiers_of_a_study() -> None:
    counts = [count(depth, [20], [10]) for depth in (10, 512, 513, 1024, 5000)]
    assert [one.upper_cells for one in by_depth(counts, (512, 1024))] == [512, 1024, 8192]
    assert [one.accepted.passages for one in by_depth(counts, (512, 1024))] == [2, 2, 1]
    assert math.isinf(by_depth(counts[:1])[0].accepted.upper)


@given(
    shares=st.lists(st.tuples(st.integers(1, 300), st.floats(0, 1)), min_size=2, max_size=8),
    most=st.integers(1, 8),
)
def test_the_interval_of_a_share_stays_a_share(shares: list[tuple[int, float]], most: int) -> None:
    counts = [count(100, [n] * most, [round(n * p)] * most, rounds=n) for n, p in shares]
    (found,) = by_depth(counts)
    for rate in found.rates:
        assert 0 <= rate.lower <= rate.mean <= rate.upper <= 1
    assert 0 <= found.accepted.lower <= found.accepted.mean <= found.accepted.upper <= most


def test_prompts_that_differ_are_not_so_many_independent_drafts() -> None:
    """95.1 % of two prompts was printed as [33.5 %, 156.8 %]."""
    (wide,) = by_depth([count(100, [100], [90], rounds=100), count(100, [100], [100], rounds=100)])
    assert 0 < wide.rates[0].lower < 0.7
    assert wide.rates[0].upper > 0.99
    (alike,) = by_depth([count(100, [100], [95], rounds=100)] * 2)
    assert 0 < alike.rates[0].lower < 0.95 < alike.rates[0].upper < 1
    (all_of_them,) = by_depth([count(100, [100], [100], rounds=100)] * 5)
    assert 0.9 < all_of_them.rates[0].lower < 1


def test_the_interval_of_a_share_holds_as_often_as_it_says() -> None:
    """Eight prompts of 40 drafts, their own rates spread (beta 6, 1.5): 95 % of 400 studies."""
    rng = np.random.default_rng(3)
    held = 0
    for rates in rng.beta(6, 1.5, (400, 8)):
        shares = rng.binomial(40, rates) / 40
        low, high = share_bounds(shares, 320, 0.025)
        held += low <= 6 / 7.5 <= high
    assert 0.92 <= held / 400 <= 0.985


@pytest.mark.parametrize("drafts", [1, 3])
def test_drafts_behind_the_end_of_the_text_do_not_count(tiny: LanguageModel, drafts: int) -> None:
    """Whichever token ends the text, counts are those of the rounds before and of what was kept."""
    ids = tiny.tokenizer.encode(TEXT)
    config = SessionConfig(spec=SpecConfig(drafts=drafts), policy="fixed")
    tokenizer = copy.copy(tiny.tokenizer)
    model = replace(tiny, tokenizer=tokenizer)
    session = create_session(model, config, prompt_cells=len(ids), max_new=48, environ={})
    session.prefill(ids)
    whole = session.generate(SamplingParams(max_new=48)).tokens
    for token in sorted(set(whole), key=whole.index):
        object.__setattr__(tokenizer, "eos_ids", frozenset({token}))
        session.rewind()
        done = session.generate(SamplingParams(max_new=48))
        assert done.tokens == whole[: whole.index(token) + 1]
        # The prompt's own token, then a bonus token a round but for one whose draft ends the text.
        assert len(done.tokens) - 1 - sum(done.accepted) in (done.rounds, done.rounds - 1)
        for hit, tried, drafted in zip(done.accepted, done.tried, done.drafted, strict=True):
            assert hit <= tried <= drafted
        before = [done.rounds, *done.accepted]
        assert all(tried <= most for tried, most in zip(done.tried, before, strict=False))
    session.close()


@pytest.mark.parametrize("drafts", [1, 3])
def test_counts_are_those_of_the_engine(tiny: LanguageModel, drafts: int) -> None:
    how = Conditions(drafts=drafts, max_new=48)
    (found,) = count_drafts(tiny, [("a", TEXT)], how)
    ids = tiny.tokenizer.encode(TEXT)
    config = SessionConfig(spec=SpecConfig(drafts=drafts), policy="fixed")
    session = create_session(tiny, config, prompt_cells=len(ids), max_new=48, environ={})
    session.prefill(ids)
    done = session.generate(SamplingParams(max_new=48))
    assert (found.rounds, found.tokens, found.depth_cells) == (
        done.rounds, len(done.tokens), len(ids)
    )  # fmt: skip
    assert found.hits == done.accepted
    assert found.tries[0] == done.drafted[0]
    assert all(hit <= tried for hit, tried in zip(found.hits, found.tries, strict=True))
    assert all(later <= hit for hit, later in zip(found.hits, found.tries[1:], strict=False))
    # Every token but the prompt's own came from a round: its bonus token, or an accepted draft.
    assert found.tokens - 1 <= found.rounds + sum(found.hits)


def test_what_is_left_out_is_said(tiny: LanguageModel) -> None:
    words: list[str] = []
    short = Conditions(max_new=4)
    assert list(count_drafts(tiny, [("a", TEXT)], short, on_skip=words.append)) == []
    assert "a: left out, the model ended after" in words[0]
    short_model = replace(tiny, config=replace(tiny.config, max_positions=200))
    room, long = 200 - 32, TEXT * 10
    how = Conditions(max_new=32)
    (found,) = count_drafts(short_model, [("b", long)], how, on_skip=words.append)
    assert found.depth_cells == room
    assert f"b: its first {room} of" in words[1]


def test_a_study_whose_auto_was_another_window_is_not_counted_for(tiny: LanguageModel) -> None:
    with pytest.raises(UsageError, match=r"drafter read auto \(auto is the ring\)"):
        list(count_drafts(tiny, [("a", "text")], Conditions(auto_window="auto")))


def test_prompts_are_files_and_the_files_of_folders(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("b.txt", "a.md", ".hidden"):
        (tmp_path / "in" / name).write_text(name)
    found = read_prompts([tmp_path / "in", tmp_path / "in" / "b.txt"])
    assert [text for _, text in found] == ["a.md", "b.txt", "b.txt"]
    (tmp_path / "crlf").write_bytes(b"a\r\nb\rc\n")
    assert read_prompts([tmp_path / "crlf"])[0][1] == "a\r\nb\rc\n"
    (tmp_path / "in" / "c").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"c cannot be read: it is not UTF-8"):
        read_prompts([tmp_path / "in"])
    with pytest.raises(UsageError, match="No such file"):
        read_prompts([tmp_path / "none"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no prompt"):
        read_prompts([tmp_path / "empty"])


def test_costs_without_break_even_pairs_are_those_of_decoding(study: StudyRecord) -> None:
    store = MemoryStore()
    store.add_study(study)
    for pair in all_pairs(study):
        rate = 80.0 if pair.mode == "on" else 100.0
        store.add_trials(make_records(pair, rounds_per_s=rate))
    prices = prices_of(store, study)
    assert {one.source for one in prices} == {"decoding trials"}
    assert all(one.break_even == pytest.approx(0.25) for one in prices)


def test_the_command_says_what_drafting_is_worth(tiny: LanguageModel, tmp_path: Path) -> None:
    plan = SMALL_PLAN.replace(
        "max_new = 12\n", 'max_new = 12\npurposes = ["decode", "break-even"]\n'
    )
    plan = plan.replace("tiers = [32, 64]", "tiers = [32, 512]").replace(
        'name = "small"', f'name = "small"\nmodel = "{TINY}"'
    )
    facts = replace(FACTS, model_hash=tiny.model_hash)
    grid = ArmGrid(parse_plan(plan, origin="p"), 64)
    study = create_study(grid, facts, created_at="2026-01-02T03:04:05+00:00")
    with DuckStore(tmp_path / "t.duckdb") as store:
        store.add_study(study)
        for pair in grid.every_pair(study=study.study):
            gain = 0.8 if pair.purpose == "break-even" else 1.0
            store.add_trials(make_records(pair, gain=gain, model_hash=tiny.model_hash))
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(TEXT + name)
    prompts = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    words = ["acceptance", *prompts, "--device", "cpu", "--max-new", "32"]

    def run(*more: object, code: int = 0) -> tuple[str, str]:
        result = CliRunner().invoke(app, [*words, *map(str, more)])
        assert result.exit_code == code, result.output
        return result.stdout, result.stderr

    priced = ("--study", "small", "--db", tmp_path / "t.duckdb")
    output = run(*priced, "--json", tmp_path / "a.json")[0]
    for part in ("prompts up to", "512", "0.25", "break-even pairs"):
        assert part in output, output
    result = json.loads((tmp_path / "a.json").read_text())
    assert result["schema"] == "strata.acceptance/1"
    assert result["conditions"]["drafts"] == 1
    assert [len(one["hits"]) for one in result["prompts"]] == [1, 1]
    assert "only one" not in run("--model", TINY, "--spec", 3)[0]
    assert "is the study's own" in run(*priced, "--spec", 3, code=2)[1]
    bundled = Path(__file__).parents[2] / "data" / "models" / "strata-mini"
    assert "name its checkpoint" in run(*priced, "--model", bundled, code=2)[1]
    run(*priced, "--workload", "mine")
    # Said before a model is loaded: the folder holds none.
    known = run(*priced, "--model", tmp_path, "--workload", "mine", code=2)[1]
    assert "'mine' is stored already" in known
    away = run("--workload", "new", "--db", tmp_path / "none" / "t.duckdb", code=2)[1]
    assert "--db:" in away
    assert not (tmp_path / "none").exists()
    run("--model", TINY, "--spec", 3, "--workload", "other", "--db", tmp_path / "t.duckdb")
    words = ["costs", "small", "--db", str(tmp_path / "t.duckdb"), "--workload"]
    done = CliRunner().invoke(app, [*words, "mine"])
    assert done.exit_code == 0, done.output
    assert "break-even pairs" in done.stdout
    refused = CliRunner().invoke(app, [*words, "other"])
    assert refused.exit_code == 2
    assert "do not draft alike: drafts 3 and 1, window_cells None and 64" in refused.stderr
    unknown = CliRunner().invoke(app, [*words, "nothing"])
    assert "no workload is called 'nothing'; there are: mine, other" in unknown.stderr


def test_a_workload_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    kept = Workload(
        workload="mine",
        model_hash="ab",
        engine_version="1",
        device="cpu",
        conditions=Conditions(drafts=3, temperature=0.7),
        created_at="2026-01-02T03:04:05+00:00",
        prompts=[count(100, [20, 10], [10, 5]), count(7, [3], [0])],
    )
    with DuckStore(tmp_path / "t.duckdb") as store:
        store.add_workload(kept)
    with DuckStore(tmp_path / "t.duckdb") as store:
        assert store.workloads() == [kept]
        assert store.workload("mine") == kept
        assert store.studies() == []
