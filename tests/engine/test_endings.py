"""Where a continuation ends, and that its text is the text of its tokens."""

from __future__ import annotations

import pytest

from strata.config import SamplingParams, SessionConfig, SpecConfig
from strata.errors import UsageError
from strata.generation import Generation
from strata.lm import LanguageModel
from strata.session import Session, create_session
from tests.conftest import prompt_of

CELLS, NEW = 220, 60
WARM = {"temperature": 1.0, "seed": 5}


@pytest.fixture(scope="module", params=[0, 4], ids=["plain", "drafting"])
def session(request: pytest.FixtureRequest, tiny: LanguageModel) -> Session:
    config = SessionConfig(spec=SpecConfig(drafts=request.param))
    made = create_session(tiny, config, prompt_cells=CELLS, max_new=NEW, environ={})
    made.prefill(prompt_of(tiny, CELLS, seed=1))
    return made


def generate(session: Session, **changes: object) -> tuple[Generation, str]:
    """Return a continuation from the prompt and its streamed text."""
    pieces: list[str] = []
    params = SamplingParams(**{"max_new": NEW, "ignore_eos": True, **WARM, **changes})  # type: ignore[arg-type]
    session.rewind()
    done = session.generate(params, pieces.append)
    assert all(pieces)
    return done, "".join(pieces)


@pytest.fixture
def full(session: Session) -> Generation:
    return generate(session)[0]


@pytest.mark.parametrize("new", [1, 2, 3, 7, NEW])
def test_max_new_is_exact_and_a_prefix(session: Session, full: Generation, new: int) -> None:
    done, streamed = generate(session, max_new=new)
    assert done.tokens == full.tokens[:new]
    assert done.stopped == "length"
    assert len(done.times_s) == new
    assert streamed == done.text == session.model.tokenizer.decode(done.tokens)
    assert sum(done.accepted) + done.rounds >= new - 1
    assert session.engine.kv.committed <= CELLS + new
    rates = (done.decode_tok_s, done.rounds_per_s, done.tokens_per_round, done.tpot_ms(50))
    assert all((rate is None) == (new == 1) for rate in rates)


def test_eos_ends_and_is_not_text(session: Session, full: Generation) -> None:
    tokenizer = session.model.tokenizer
    before = tokenizer.eos_ids
    eos = full.tokens[20]
    at = full.tokens.index(eos)
    tokenizer.eos_ids = (eos,)
    try:
        done, streamed = generate(session, ignore_eos=False)
        ignored, _ = generate(session)
    finally:
        tokenizer.eos_ids = before
    assert done.tokens == full.tokens[: at + 1]
    assert done.stopped == "eos"
    assert streamed == done.text == tokenizer.decode(full.tokens[:at])
    assert ignored.tokens == full.tokens


@pytest.mark.parametrize("start", [0, 9, 31])
@pytest.mark.parametrize("size", [1, 2, 6, 15])
def test_stop_strings_end_before_themselves(
    session: Session, full: Generation, start: int, size: int
) -> None:
    stop = full.text[start : start + size]
    done, streamed = generate(session, stop=("never in it \x00", stop))
    assert done.stopped == "stop"
    assert streamed == done.text == full.text[: full.text.index(stop)]
    assert done.tokens == full.tokens[: len(done.tokens)]
    decode = session.model.tokenizer.decode
    assert stop in decode(done.tokens)
    assert stop not in decode(done.tokens[:-1])


def test_a_stop_that_never_comes_holds_nothing_back(session: Session, full: Generation) -> None:
    stop = full.text[-1] + "\x00"
    done, streamed = generate(session, stop=(stop,))
    assert (done.stopped, streamed, done.text) == ("length", full.text, full.text)


def test_an_interrupt_keeps_what_there_is(session: Session, full: Generation) -> None:
    seen: list[str] = []

    def interrupt(text: str) -> None:
        seen.append(text)
        if len(seen) == 5:
            raise KeyboardInterrupt

    session.rewind()
    done = session.generate(
        SamplingParams(max_new=NEW, ignore_eos=True, temperature=1.0, seed=5), interrupt
    )
    assert done.stopped == "interrupted"
    assert done.tokens == full.tokens[: len(done.tokens)]
    assert 1 < len(done.tokens) < NEW
    assert full.text.startswith(done.text)
    again, _ = generate(session)
    assert (again.tokens, again.accepted) == (full.tokens, full.accepted)


def test_an_interrupt_at_the_last_text_keeps_all_of_it(session: Session, full: Generation) -> None:
    """The last round's text is shown behind the rounds."""
    seen: list[str] = []

    def interrupt(text: str) -> None:
        seen.append(text)
        if "".join(seen) == full.text:
            raise KeyboardInterrupt

    session.rewind()
    done = session.generate(SamplingParams(max_new=NEW, ignore_eos=True, **WARM), interrupt)  # type: ignore[arg-type]
    assert done.stopped == "interrupted"
    assert (done.tokens, done.text, done.rounds) == (full.tokens, full.text, full.rounds)
    assert done.first_token_s > 0


@pytest.mark.parametrize("at", [1, 2, 3])
def test_an_interrupt_inside_a_forward_leaves_a_session_that_rewinds(
    session: Session, full: Generation, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    attend = session.engine.kv.attend

    def interrupt(*args):
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyboardInterrupt
        return attend(*args)

    with monkeypatch.context() as patch:
        patch.setattr(session.engine.kv, "attend", interrupt)
        done, _ = generate(session)
    assert done.stopped == "interrupted"
    again, _ = generate(session)
    assert (again.tokens, again.accepted) == (full.tokens, full.accepted)


def test_a_second_continuation_needs_a_rewind(session: Session) -> None:
    generate(session, max_new=1)
    with pytest.raises(RuntimeError, match="begun already; rewind"):
        session.generate(SamplingParams(max_new=1))


def test_more_than_the_session_was_created_for_is_refused(
    session: Session, tiny: LanguageModel
) -> None:
    session.rewind()
    with pytest.raises(UsageError, match="exceed"):
        session.generate(SamplingParams(max_new=NEW * 3))
    fresh = create_session(tiny, SessionConfig(), prompt_cells=4, max_new=2, environ={})
    with pytest.raises(UsageError, match="exceed"):
        fresh.prefill(prompt_of(tiny, 100))
    with pytest.raises(RuntimeError, match="follows prefill"):
        fresh.generate(SamplingParams(max_new=2))
    fresh.close()
    fresh.close()
