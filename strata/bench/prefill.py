"""What a prompt takes, from nothing to the first token."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from strata.bench.spread import Spread
from strata.config import SamplingParams, SessionConfig
from strata.device import every_core
from strata.lm.model import LanguageModel
from strata.passages import load_passage
from strata.session import create_session

NEW = 32
"""New tokens of a session: enough that its rounds are captured before the first."""


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
    """To the first token: creating the session, the prompt, what follows."""
    session_ms: Spread
    """Of it to create the session, which reserves its memory."""
    first_token_ms: Spread
    """Of it behind the prompt: to draw the first token and to capture the rounds."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Seconds of one session."""

    session_s: float
    prompt_s: float
    first_token_s: float


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
            sums = [run.session_s + run.prompt_s + run.first_token_s for run in runs]
            yield PrefillFigure(
                depth=depth,
                budget_bytes=budget,
                ring_cells=ring,
                expert_slots=slots,
                prompt_tok_s=Spread.of([depth / run.prompt_s for run in runs]),
                ttft_ms=Spread.of([seconds * 1e3 for seconds in sums]),
                session_ms=Spread.of([run.session_s * 1e3 for run in runs]),
                first_token_ms=Spread.of([run.first_token_s * 1e3 for run in runs]),
            )


def _run(model: LanguageModel, ids: list[int], config: SessionConfig) -> tuple[_Run, int, int]:
    """Return the times of one session, the cells of its ring and its expert slots."""
    start = time.perf_counter()
    session = create_session(model, config, prompt_cells=len(ids), max_new=NEW, environ={})
    created_s = time.perf_counter() - start
    with every_core():
        prompt = session.prefill(ids)
    done = session.generate(SamplingParams(max_new=NEW, ignore_eos=True)).whole()
    ring, slots = session.decision.pool_cells, session.expert_slots
    session.close()
    return _Run(created_s, prompt.seconds, done.first_token_s), ring, slots
