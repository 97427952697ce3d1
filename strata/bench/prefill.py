"""What a prompt takes: from nothing to the first token, and to rounds that are captured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from strata.bench.spread import Spread
from strata.config import MAX_ROWS, SamplingParams, SessionConfig
from strata.device import every_core
from strata.lm.model import LanguageModel
from strata.passages import load_passage
from strata.sampling import Sampler
from strata.session import create_session

NEW = 2 * MAX_ROWS + 1
"""New tokens that a session is created for: two rounds are run behind the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillFigure:
    """One depth and budget; each figure is the median of sessions made from nothing."""

    depth: int
    budget_bytes: int | None
    ring_cells: int
    expert_slots: int
    prompt_tok_s: Spread
    """Prompt tokens a second of the prompt's own time."""
    ttft_ms: Spread
    """From creating the session, which reserves its memory, to the first token."""
    captured_ms: Spread
    """From creating the session to the end of its first round, which captures the graphs."""
    round_ms: Spread
    """The second round: what a round takes once that is done."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Seconds of one session."""

    prompt_s: float
    first_s: float
    captured_s: float
    round_s: float


def measure_prefill(
    model: LanguageModel,
    depths: list[int],
    budgets: list[int | None],
    config: SessionConfig,
    *,
    repeats: int,
    seed: int,
    on_step: Callable[[], None],
) -> Iterator[PrefillFigure]:
    """Yield the figure of each depth and budget; `on_step` is called after every session.

    One session before the timed ones loads libraries and compiles kernels.
    """
    for depth in depths:
        ids = load_passage(f"{depth}:{seed}", model.tokenizer)
        for budget in budgets:
            mine = replace(config, vram_budget_bytes=budget)
            runs: list[_Run] = []
            for _ in range(repeats + 1):
                run, ring, slots = _run(model, ids, mine)
                runs.append(run)
                on_step()
            runs = runs[1:]
            yield PrefillFigure(
                depth=depth,
                budget_bytes=budget,
                ring_cells=ring,
                expert_slots=slots,
                prompt_tok_s=Spread.of([depth / run.prompt_s for run in runs]),
                ttft_ms=Spread.of([run.first_s * 1e3 for run in runs]),
                captured_ms=Spread.of([run.captured_s * 1e3 for run in runs]),
                round_ms=Spread.of([run.round_s * 1e3 for run in runs]),
            )


def _run(model: LanguageModel, ids: list[int], config: SessionConfig) -> tuple[_Run, int, int]:
    """Return the times of one session, the cells of its ring and its expert slots."""
    sampler = Sampler(SamplingParams(max_new=NEW, ignore_eos=True))
    start = time.perf_counter()
    session = create_session(model, config, prompt_cells=len(ids), max_new=NEW, environ={})
    with every_core():
        prompt = session.prefill(ids)
    engine = session.engine
    drafts = 1 if session.drafts == "auto" else int(session.drafts)
    engine.first_token(sampler)
    times = [time.perf_counter()]
    for _ in range(2):
        engine.round(sampler, drafts)
        times.append(time.perf_counter())
    ring, slots = session.decision.pool_cells, session.expert_slots
    session.close()
    return (
        _Run(prompt.seconds, times[0] - start, times[1] - start, times[2] - times[1]),
        ring,
        slots,
    )
