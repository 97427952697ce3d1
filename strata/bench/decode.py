"""Decode rate of one model on one device by depth, drafts and ring."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from strata.bench.profile import RoundProfile, profile_rounds
from strata.bench.spread import Spread
from strata.captured import CapturedEngine
from strata.config import Prefetch, SamplingParams, SessionConfig
from strata.device import every_core
from strata.errors import SelfCheckError
from strata.generation import Generation
from strata.kv.counters import Counters
from strata.lm.model import LanguageModel
from strata.parked import Parked
from strata.passages import load_passage
from strata.session import Session, create_session

Drafts = int | Literal["auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One configuration: cells of the prompt, drafts a round, the cap of the ring."""

    depth: int
    drafts: Drafts
    ring: int | None
    """`KvConfig.resident_cells`: 0 keeps the whole context resident, None is ``auto``."""
    prefetch: Prefetch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFigure:
    """What one arm reached: the median of the repeats, and what the last of them did."""

    arm: Arm
    ring_cells: int
    captured: bool
    tok_s: Spread
    rounds_s: Spread
    tokens_round: float
    tokens: list[int]
    token_hash: str
    agreeing: int
    """Leading tokens that are those of the first arm of this depth."""
    kv: Counters
    experts: Counters
    expert_slots: int
    ledger: dict[str, int]
    warnings: list[str]
    profile: RoundProfile | None
    """Kernels of a round; None without captured rounds."""


def measure_decode(
    model: LanguageModel,
    arms: list[Arm],
    config: SessionConfig,
    *,
    max_new: int,
    repeats: int,
    seed: int,
    on_step: Callable[[], None],
) -> Iterator[DecodeFigure]:
    """Yield the figure of each arm; `config` holds what all arms share.

    Arms of one depth stand together and start from one prompt, passage `seed`, run once. A repeat
    rewinds to the state behind it and continues by `max_new` tokens; the first continuation,
    which captures, is not timed. `on_step` is called `steps(arms, repeats)` times. Raises
    SelfCheckError where two rings, or two ways to prefetch, draw other tokens without a drafter.
    """
    params = SamplingParams(max_new=max_new, ignore_eos=True)
    for depth, group in groupby(arms, key=lambda arm: arm.depth):
        together = list(group)
        ids = load_passage(f"{depth}:{seed}", model.tokenizer)
        parked = _run_prompt(model, ids, together, config, max_new)
        on_step()
        first: list[int] | None = None
        plain: list[int] | None = None
        for arm in together:
            figure = _measure(model, parked, arm, config, params, repeats, on_step)
            first = figure.tokens if first is None else first
            if arm.drafts == 0:
                if plain is not None and plain != figure.tokens:
                    raise SelfCheckError(
                        f"at {depth} cells a ring of {figure.ring_cells} cells drew other tokens "
                        "than the ring before it, so no speed is printed; "
                        "run the tests of strata/engine"
                    )
                plain = figure.tokens
            yield replace(figure, agreeing=count_agreeing(figure.tokens, first))


def steps(arms: list[Arm], repeats: int) -> int:
    """Return how often `measure_decode` calls `on_step`."""
    return len({arm.depth for arm in arms}) + len(arms) * (repeats + 1)


def arm_config(config: SessionConfig, arm: Arm) -> SessionConfig:
    """Return `config` with the knobs of `arm`."""
    return replace(
        config,
        kv=replace(config.kv, resident_cells=arm.ring),
        spec=replace(config.spec, drafts=arm.drafts),
        prefetch=arm.prefetch,
    )


def count_agreeing(tokens: list[int], others: list[int]) -> int:
    """Return how many leading tokens are equal."""
    pairs = zip(tokens, others, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(others)))


def _run_prompt(
    model: LanguageModel, ids: list[int], arms: list[Arm], config: SessionConfig, max_new: int
) -> Parked:
    """Return the state behind the prompt, with the drafter's cells where any arm drafts."""
    leader = max(arms, key=lambda arm: arm.drafts != 0)
    session = create_session(
        model, arm_config(config, leader), prompt_cells=len(ids), max_new=max_new, environ={}
    )
    with every_core():
        session.prefill(ids)
        parked = session.park()
    session.close()
    return parked


def _measure(
    model: LanguageModel,
    parked: Parked,
    arm: Arm,
    config: SessionConfig,
    params: SamplingParams,
    repeats: int,
    on_step: Callable[[], None],
) -> DecodeFigure:
    session = create_session(
        model,
        arm_config(config, arm),
        prompt_cells=parked.prompt_cells,
        max_new=params.max_new,
        environ={},
    )
    session.restore(parked)
    session.generate(params).whole()
    on_step()
    runs: list[Generation] = []
    for _ in range(repeats):
        session.rewind()
        runs.append(session.generate(params).whole())
        on_step()
    figure = _figure(session, arm, runs, params)
    session.close()
    return figure


def _figure(
    session: Session, arm: Arm, runs: list[Generation], params: SamplingParams
) -> DecodeFigure:
    last = runs[-1]
    captured = isinstance(session.engine, CapturedEngine)
    profile = None
    if captured and session.model.device.type == "cuda" and arm.drafts != "auto":
        profile = profile_rounds(session, params, arm.drafts)
    return DecodeFigure(
        arm=arm,
        ring_cells=session.decision.pool_cells,
        captured=captured,
        tok_s=Spread.of([run.decode_tok_s or 0.0 for run in runs]),
        rounds_s=Spread.of([run.rounds_per_s or 0.0 for run in runs]),
        tokens_round=last.tokens_per_round or 0.0,
        tokens=last.tokens,
        token_hash=last.token_hash,
        agreeing=len(last.tokens),
        kv=last.kv,
        experts=last.experts,
        expert_slots=session.expert_slots,
        ledger=session.ledger,
        warnings=session.warnings,
        profile=profile,
    )
