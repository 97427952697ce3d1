"""What a pair warms up is all that it times."""

from __future__ import annotations

import pytest

import strata.session
from strata.captured import CapturedEngine
from strata.lm import LanguageModel
from strata.tuner.arms import PairSpec
from strata.tuner.plan import WARM_UP_TOKENS
from strata.tuner.session_bench import SessionBench, park_prompt


@pytest.mark.parametrize("drafts", [0, 1, 3, 7])
def test_no_round_is_captured_while_a_run_is_timed(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch, drafts: int
) -> None:
    monkeypatch.setattr(strata.session, "Engine", CapturedEngine)
    spec = PairSpec(
        study="",
        split="search",
        tier_cells=64,
        depth_cells=64,
        passage="64:0",
        mode="on" if drafts else "off",
        spec=drafts,
        mtp_window_cells=32,
        default_ring_cells=64,
        arm_ring_cells=64,
        select="0",
        page_cells=16,
        victims="clock",
        vram_budget_bytes=None,
        context_cells=112,
        max_new=21,
        warm_up=WARM_UP_TOKENS,
        min_decode_s=None,
    )
    bench = SessionBench(tiny, spec, 64, park_prompt(tiny, spec))
    bench.warm_up(WARM_UP_TOKENS)
    engine = bench._session.engine
    assert isinstance(engine, CapturedEngine)
    warm = set(engine._phases)
    result = bench.run()
    assert result.tokens == spec.max_new
    assert set(engine._phases) == warm
