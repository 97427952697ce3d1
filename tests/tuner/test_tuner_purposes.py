"""Pairs that price drafting and prompts, and the engine that a worker runs them on."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tuner_samples import SMALL_PLAN, make_records

from strata.errors import StoreError, StrataError, UsageError
from strata.lm import LanguageModel
from strata.tuner.arms import ArmGrid, PairSpec
from strata.tuner.measure import RunResult, measure_pair
from strata.tuner.plan import Plan, parse_plan
from strata.tuner.record import TrialRecord, planned
from strata.tuner.session_bench import PromptBench, SessionBench, park_prompt
from strata.tuner.store import MemoryStore
from strata.tuner.study import StudyRecord
from strata.tuner.sweep import mean_gain

TINY = Path(__file__).parent.parent / "data" / "tiny"
WANTED = 'purposes = ["decode", "break-even", "prefill"]\n'


def with_purposes(line: str = WANTED, text: str = SMALL_PLAN) -> Plan:
    return parse_plan(text.replace("max_new = 12\n", f"max_new = 12\n{line}"), origin="p.toml")


def priced(purpose: str) -> list[PairSpec]:
    grid = ArmGrid(with_purposes(), 64)
    return [pair for pair in grid.every_pair(study="s") if pair.purpose == purpose]


def test_search_passages_price_every_ring() -> None:
    grid = ArmGrid(with_purposes(), 64)
    arms = grid.arms()
    assert len(priced("prefill")) == len(arms)
    assert len(priced("break-even")) == sum(arm.mode == "on" for arm in arms)
    assert {pair.passage.partition(":")[2] for pair in priced("break-even")} == {"0"}
    ids = [pair.pair_id for pair in grid.every_pair(study="s")]
    assert len(set(ids)) == len(ids)


def test_without_search_passages_a_fresh_one_prices() -> None:
    text = SMALL_PLAN.replace("search = [0]", "search = []")
    grid = ArmGrid(with_purposes(text=text), 64)
    pairs = [pair for pair in grid.every_pair(study="s") if pair.purpose != "decode"]
    assert {pair.passage.partition(":")[2] for pair in pairs} == {"1"}


def test_ids_of_decoding_pairs_are_those_of_before() -> None:
    """A study that only decodes has the ids that releases without purposes gave it."""
    only = [p.pair_id for p in ArmGrid(with_purposes(""), 64).every_pair(study="s")]
    more = ArmGrid(with_purposes(), 64).every_pair(study="s")
    assert [p.pair_id for p in more if p.purpose == "decode"] == only


def test_a_break_even_pair_has_one_ring_and_two_modes() -> None:
    pair = next(one for one in priced("break-even") if one.arm_ring_cells == 32)
    assert pair.ring_cells(0) == pair.ring_cells(1) == 32
    rows = [planned(pair, position) for position in range(4)]
    assert [row["mode"] for row in rows] == ["off", "on", "on", "off"]
    assert [row["spec"] for row in rows] == [0, 1, 1, 0]
    assert [row["mtp_window_cells"] for row in rows] == [None, 64, 64, None]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('purposes = ["prefill"]\n', "purposes must hold decode"),
        ('purposes = ["decode", "decode"]\n', "none of them twice"),
        ('purposes = ["decode", "speed"]\n', "measure.purposes.1"),
    ],
)
def test_a_plan_with_odd_purposes_is_refused(line: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        with_purposes(line)


def test_break_even_needs_a_drafter() -> None:
    text = SMALL_PLAN.replace("rings = ", 'modes = ["off"]\nrings = ')
    with pytest.raises(UsageError, match="modes must hold on"):
        with_purposes(text=text)


def run(model: LanguageModel, pair: PairSpec) -> list[RunResult]:
    parked = park_prompt(model, pair)

    def bench(side: PairSpec, ring: int) -> SessionBench | PromptBench:
        if side.purpose == "prefill":
            return PromptBench(model, side, ring)
        return SessionBench(model, side, ring, parked)

    results = [outcome for _, outcome in measure_pair(pair, bench)]
    assert all(isinstance(one, RunResult) for one in results), results
    return [one for one in results if isinstance(one, RunResult)]


def test_refused_drafts_cost_and_give_nothing(tiny: LanguageModel) -> None:
    pair = next(one for one in priced("break-even") if one.arm_ring_cells == 32)
    plain, priced_, *_ = run(tiny, pair)
    assert plain.token_hash == priced_.token_hash
    assert plain.rounds == priced_.rounds == 11  # one token a round, the prompt's first apart
    assert (plain.drafted, plain.accepted) == ([], [])
    assert priced_.drafted == [10]  # the last round has no room for a draft
    assert priced_.accepted == [0]


def test_an_engine_that_accepts_all_the_same_is_no_price(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strata.engine import Engine

    pair = replace(next(one for one in priced("break-even")), max_new=64, context_cells=128)
    deaf = property(lambda _: False, lambda *_: None)
    monkeypatch.setattr(Engine, "refuse_drafts", deaf, raising=False)
    parked = park_prompt(tiny, pair)
    bench = SessionBench(tiny, pair, pair.arm_ring_cells, parked)
    with pytest.raises(StrataError, match="drafts that it was to refuse"):
        bench.run()


def test_a_prompt_is_timed_by_itself(tiny: LanguageModel) -> None:
    pair = next(one for one in priced("prefill") if one.arm_ring_cells == 32)
    for result in run(tiny, pair):
        assert result.tokens == pair.spec + 2
        assert result.rounds is None
        assert result.rounds_per_s is None
        assert result.prefill_s
        assert result.ttft_ms
        assert result.ttft_ms > 1000 * result.prefill_s


def test_a_continuation_has_no_prompt(tiny: LanguageModel) -> None:
    pair = next(one for one in priced("decode"))
    for result in run(tiny, pair):
        assert result.prefill_s is None
        assert result.ttft_ms is None
        assert result.rounds_per_s


def test_only_decoding_pairs_choose_and_judge() -> None:
    plan = with_purposes()
    grid = ArmGrid(plan, 64)
    arm = next(one for one in grid.arms() if one.mode == "on" and one.ring_cells == 32)
    pairs = list(grid.pairs(arm, study="s"))
    records = [
        run
        for pair in pairs
        for run in make_records(pair, gain=1.5 if pair.purpose == "decode" else 0.1)
    ]
    gain = mean_gain(records, pairs)
    assert gain is not None
    assert gain > 0


def test_other_purposes_are_stored_and_framed_apart(study: StudyRecord) -> None:
    store = MemoryStore()
    store.add_study(study)
    for pair in (*priced("break-even")[:1], *priced("decode")[:2]):
        store.add_trials(make_records(replace(pair, study=study.study)))
    assert len(store.frame(study.study)) == 8
    assert len(store.frame(study.study, purpose="break-even")) == 4
    record = store.trials(study.study)[0].to_json()
    with pytest.raises(StoreError, match="purpose 'x' is none of decode, break-even, prefill"):
        TrialRecord.from_json(record | {"purpose": "x"})


def test_a_prompt_runs_once_for_all_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from strata.tuner import session_bench
    from strata.tuner.trial import StrataEngine

    threads = torch.get_num_threads()
    engine = StrataEngine(str(TINY), "cpu")
    engine.prepare()
    ran: list[str] = []

    def park(model: LanguageModel, spec: PairSpec) -> object:
        ran.append(spec.passage)
        return park_prompt(model, spec)

    monkeypatch.setattr(session_bench, "park_prompt", park)
    for pair in priced("decode"):
        for position in (0, 1):
            engine.open_bench(pair.side(position), pair.ring_cells(position)).close()
    torch.set_num_threads(threads)
    assert sorted(ran) == ["32:0", "32:1", "32:2", "64:0", "64:1", "64:2"]


@pytest.mark.parametrize(
    ("seen", "number", "taken"), [(None, 1, "1"), ("4,GPU-a,7", 1, "GPU-a"), ("4,GPU-a,7", 0, None)]
)
def test_a_worker_sees_the_gpu_of_its_number_alone(
    seen: str | None, number: int, taken: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from strata.tuner.trial import StrataEngine

    threads = torch.get_num_threads()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if seen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    StrataEngine("bundled", "auto", number=number).prepare()
    torch.set_num_threads(threads)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == (taken or seen)
