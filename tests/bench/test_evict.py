"""The replay of victim policies: it does what the engine does, and nothing beats the optimum."""

from __future__ import annotations

import pytest

from strata.bench.evict import FIRST_ROUNDS, LAST_ROUNDS, POLICIES, replay
from strata.bench.trace import Trace, record
from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.lm import LanguageModel
from strata.session import create_session
from tests.conftest import prompt_of

SELECTION, NEW = Selection(cells=96), 64


@pytest.fixture(scope="module", params=[0, 3])
def trace(tiny: LanguageModel, request: pytest.FixtureRequest) -> tuple[int, Trace]:
    ids = prompt_of(tiny, 500, seed=1)
    return request.param, record(
        tiny, ids, selection=SELECTION, drafts=request.param, max_new=NEW, on_step=lambda _: None
    )


@pytest.mark.parametrize("victims", ["clock", "lrfu"])
@pytest.mark.parametrize("multiple", [1, 2, 4])
def test_the_replay_misses_what_a_session_misses(
    tiny: LanguageModel, trace: tuple[int, Trace], victims: str, multiple: int
) -> None:
    drafts, recorded = trace
    found = next(
        rate for rate in replay(recorded, [multiple]) if rate.policy == victims and rate.seeded
    )
    config = SessionConfig(
        kv=KvConfig(
            resident_cells=found.ring_cells,
            victims=victims,  # type: ignore[arg-type]
            selection=SELECTION,
        ),
        spec=SpecConfig(drafts=drafts, window_cells=0),
    )
    session = create_session(tiny, config, prompt_cells=500, max_new=NEW, environ={})
    session.prefill(prompt_of(tiny, 500, seed=1))
    done = session.generate(SamplingParams(max_new=NEW, ignore_eos=True))
    lookups = sum(len(resolve.pages) for layer in recorded.resolves for resolve in layer)
    assert done.kv.lookups == lookups
    assert done.kv.hits == pytest.approx(found.all_ratio * lookups)


def test_rates_are_of_the_rounds_that_they_name(trace: tuple[int, Trace]) -> None:
    recorded = trace[1]
    found = next(replay(recorded, [2]))
    rounds = list(zip(*recorded.resolves, strict=True))
    cut = Trace(
        select_pages=recorded.select_pages,
        page_cells=recorded.page_cells,
        num_pages=recorded.num_pages,
        tail=recorded.tail,
        born_pages=recorded.born_pages,
        rankings=recorded.rankings,
        resolves=[list(layer) for layer in zip(*rounds[:FIRST_ROUNDS], strict=True)],
    )
    assert next(replay(cut, [2])).all_ratio == found.first_ratio
    assert len(rounds) <= LAST_ROUNDS
    assert found.last_ratio == found.all_ratio


def test_no_policy_beats_the_optimum_and_a_larger_ring_is_no_worse(
    trace: tuple[int, Trace],
) -> None:
    by_ring: dict[tuple[int, bool], dict[str, float]] = {}
    for rate in replay(trace[1], [1, 2, 4, 8]):
        by_ring.setdefault((rate.multiple, rate.seeded), {})[rate.policy] = rate.all_ratio
    for rates in by_ring.values():
        assert set(rates) == set(POLICIES)
        assert max(rates.values()) == pytest.approx(rates["belady"])
    for seeded in (True, False):
        for policy in ("lru", "belady"):  # stack algorithms (Mattson et al., 1970)
            curve = [by_ring[multiple, seeded][policy] for multiple in (1, 2, 4, 8)]
            assert curve == sorted(curve)
