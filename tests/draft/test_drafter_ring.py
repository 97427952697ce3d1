"""The drafter's modulo ring: reads equal the last W committed cells, whatever was rejected."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strata import engine
from strata.arena import Arena
from strata.config import (
    MAX_DRAFTS,
    WINDOW_SLACK_CELLS,
    KvConfig,
    SamplingParams,
    Selection,
    SessionConfig,
    SpecConfig,
)
from strata.draft.ring import DrafterRing, ring_shape
from strata.lm import LanguageModel
from strata.session import create_session
from tests.conftest import Run, prompt_of

SHAPE = (2, 1, 3)
MAX_CELLS = 120
WILD = 1e6


def make_ring(window: int, max_cells: int = MAX_CELLS) -> DrafterRing:
    return DrafterRing(SHAPE, window, max_cells, torch.float32, Arena(1 << 16, torch.device("cpu")))


def cells(start: int, count: int) -> torch.Tensor:
    """Return cells that hold their own number."""
    number = torch.arange(start, start + count, dtype=torch.float32)
    return number[:, None, None, None].expand(count, *SHAPE).clone()


def write(ring: DrafterRing, start: int, new: torch.Tensor, *, committed: bool) -> None:
    ring.write(torch.arange(start, start + len(new)), new, committed=committed)


def read(ring: DrafterRing, position: int) -> list[float]:
    """Return the cells that a row at `position` reads."""
    kv = ring.read(position)
    assert (kv == kv[:1, :, :, :1]).all(), "K and V of a cell belong together"
    return kv[0, 0, :, 0].tolist()


def expected(window: int, position: int) -> list[int]:
    """Return the cells that a row at `position` reads; there is no cell 0."""
    return list(range(max(1, position - min(window or MAX_CELLS, MAX_CELLS) + 1), position + 1))


@settings(max_examples=150, deadline=None)
@given(
    window=st.sampled_from([0, 1, 2, 5, 16, 100, MAX_CELLS, 10_000]),
    prompt=st.integers(0, 60),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("round"), st.integers(0, 6), st.integers(1, 8)),
            st.tuples(st.just("prompt"), st.integers(1, 40), st.just(0)),
            st.tuples(st.just("truncate"), st.integers(1, 30), st.just(0)),
        ),
        max_size=40,
    ),
)
def test_reads_are_the_last_committed_cells(window, prompt, steps):
    ring = make_ring(window)
    end = 1  # the next cell to write
    if prompt:
        write(ring, 1, cells(1, prompt), committed=True)
        end += prompt
    for kind, a, b in steps:
        if kind == "truncate":
            end = max(1, end - a)
            ring.refill(end)
        elif kind == "prompt":
            count = min(a, MAX_CELLS - end)
            write(ring, end, cells(end, count), committed=True)
            end += count
        else:
            verified = min(b, MAX_CELLS - end)
            if not verified:
                continue
            write(ring, end, cells(end, verified), committed=True)
            end += verified
            position = end - 1
            for ahead in range(min(a, WINDOW_SLACK_CELLS - 1) + 1):
                # The row that proposes the next draft reads its own speculative cells too.
                got = read(ring, position + ahead)
                real = expected(window, position + ahead)
                assert got == [n if n < end else WILD + n for n in real]
                speculative = cells(position + ahead + 1, 1) + WILD
                write(ring, position + ahead + 1, speculative, committed=False)
        if end > 1:
            assert read(ring, end - 1) == expected(window, end - 1)
            ring.refill(end)
            assert read(ring, end - 1) == expected(window, end - 1)


@pytest.mark.parametrize("window", [0, 1, 7, 5_000])
def test_the_ring_is_carved_as_it_is_planned(window):
    ring = make_ring(window)
    assert tuple(ring.cells.shape) == ring_shape(window, MAX_CELLS, SHAPE[1], SHAPE[2])
    assert ring.capacity >= ring.window + WINDOW_SLACK_CELLS


def test_the_slack_holds_a_round() -> None:
    """A round writes the verified rows and their drafts ahead of the committed end."""
    assert WINDOW_SLACK_CELLS >= MAX_DRAFTS + 2


@pytest.mark.parametrize("window", [1, 2, 7, 33])
def test_a_ring_that_wraps_drafts_as_one_that_never_does(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """Warm sampling rejects many drafts; each leaves cells behind in the ring."""
    runs = []
    for wraps in (True, False):
        config = SessionConfig(spec=SpecConfig(drafts=7, window_cells=window))
        session = create_session(tiny, config, prompt_cells=600, max_new=200, environ={})
        ring = session.engine.drafter.ring
        if not wraps:
            ring.capacity = 1_000
            ring.cells = torch.zeros(1_000, *ring.cells.shape[1:])
        session.prefill(prompt_of(tiny, 600, seed=4))
        params = SamplingParams(max_new=200, ignore_eos=True, temperature=0.9, seed=1)
        runs.append(session.generate(params))
    wrapping, plain = runs
    assert wrapping.tokens == plain.tokens
    assert (wrapping.rounds, wrapping.accepted) == (plain.rounds, plain.accepted)
    assert wrapping.accepted[0] < wrapping.rounds > 50


@pytest.mark.parametrize("selection", [Selection(), Selection(cells=64)])
@pytest.mark.parametrize("window", [0, 1, 5, 40, 320, 4_000])
def test_drafts_do_not_depend_on_a_truncation(
    tiny: LanguageModel, window: int, selection: Selection
) -> None:
    """After a rewind a session repeats its rounds, its acceptance and its hits and misses."""
    ids = prompt_of(tiny, 300, seed=4)
    config = SessionConfig(
        kv=KvConfig(resident_cells=0 if selection.is_dense else 1, selection=selection),
        spec=SpecConfig(drafts=3, window_cells=window),
    )
    session = create_session(tiny, config, prompt_cells=300, max_new=60, environ={})
    session.prefill(ids)
    runs = []
    for new in (60, 7, 60, 1, 60):
        runs.append(session.generate(SamplingParams(max_new=new, ignore_eos=True)))
        session.rewind()
    full = [run for run in runs if len(run.tokens) == 60]
    assert len({(run.token_hash, run.rounds, tuple(run.accepted)) for run in full}) == 1
    assert len({str(run.kv) for run in full}) == 1, "a repeat did other work"


def test_a_window_as_wide_as_the_context_reads_what_no_window_reads(run: Run) -> None:
    results = {}
    for window in (0, 400, 10_000):
        config = SessionConfig(
            kv=KvConfig(resident_cells=0), spec=SpecConfig(drafts=4, window_cells=window)
        )
        _, done = run(config)
        results[window] = (done.tokens, done.rounds, done.accepted)
    assert len({str(result) for result in results.values()}) == 1


def test_rewind_right_after_a_prompt_of_any_length(tiny: LanguageModel) -> None:
    """A prompt of one token leaves the drafter nothing to write; a full chunk leaves a rest."""
    for cells_of_prompt in (1, 2, 16, 511, 512, 513, 1024, 1025):
        ids = prompt_of(tiny, cells_of_prompt)
        session = create_session(
            tiny, SessionConfig(), prompt_cells=len(ids), max_new=6, environ={}
        )
        session.prefill(ids)
        session.rewind()
        first = session.generate(SamplingParams(max_new=6, ignore_eos=True))
        session.rewind()
        session.rewind()
        again = session.generate(SamplingParams(max_new=6, ignore_eos=True))
        assert (first.tokens, first.accepted) == (again.tokens, again.accepted)


def test_ctrl_c_while_a_prompt_s_cells_are_written_leaves_them_to_be_written(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_new=12, ignore_eos=True)
    runs = []
    for interrupts in (False, True):
        session = create_session(
            tiny,
            SessionConfig(spec=SpecConfig(drafts=3)),
            prompt_cells=90,
            max_new=12,
            environ={},
        )
        session.prefill(prompt_of(tiny, 90, seed=4))
        if interrupts:
            with monkeypatch.context() as patch:
                patch.setattr(session.engine.drafter, "write_rows", press_ctrl_c)
                assert session.generate(params).stopped == "interrupted"
            session.rewind()
        runs.append(session.generate(params))
    assert runs[0].tokens == runs[1].tokens
    assert runs[0].accepted == runs[1].accepted


def press_ctrl_c(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("chunk", [7, 100, 511, 2_000])
def test_a_prompt_leaves_the_same_cells_whatever_its_chunks(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Cell i pairs token i with the hidden state of cell i - 1, also where a chunk ends."""
    ids = prompt_of(tiny, 1_100, seed=4)
    config = SessionConfig(spec=SpecConfig(drafts=1, window_cells=0))
    parked = []
    for size in (512, chunk):
        monkeypatch.setattr(engine, "PROMPT_CHUNK", {"cpu": size})
        session = create_session(tiny, config, prompt_cells=len(ids), max_new=8, environ={})
        session.prefill(ids)
        parked.append(session.park())
    for name in ("cells", "drafter_cells", "hidden"):
        one, other = (getattr(each, name) for each in parked)
        assert one.shape == other.shape
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert len(parked[0].drafter_cells) == len(ids)
