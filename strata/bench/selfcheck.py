"""Refuse to print a speed where what is timed computes something wrong.

Every kernel that a run uses is called once on random inputs, fresh each time, and held against its
reference (`strata.bench.checks`). Where no kernel runs, sessions of two rings must give the same
logits, bit by bit.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

import torch

from strata.bench.checks import CHECKS, Inputs
from strata.config import (
    PAGE_CELLS,
    KvConfig,
    SamplingParams,
    Selection,
    SessionConfig,
    SpecConfig,
    tail_pages,
)
from strata.device import device_name
from strata.errors import SelfCheckError
from strata.kernels import device
from strata.lm.config import LMConfig
from strata.lm.model import LanguageModel
from strata.sampling import Sampler
from strata.session import create_session

ENGINE_CELLS, ENGINE_SELECT, ENGINE_STEPS = 480, 64, 9
"""The first token is the prompt's, so that 8 steps decode."""
SELECTING, MOVING = ("select",), ("resolve", "gather", "prefetch")
"""What a run needs besides with a selection, and where pages or experts come and go."""


def check_run(model: LanguageModel, *, selected: bool, pooled: bool) -> None:
    """Hold what a session of `model` uses against its references.

    `selected` where rows read a selection, `pooled` where experts have a budget. Raises
    SelfCheckError, naming what disagrees.
    """
    if not device.has_kernels(torch.empty(0, device=model.device)):
        check_engine(model)
        return
    left_out = {*(() if selected else SELECTING), *(() if selected or pooled else MOVING)}
    if not model.has_mtp:
        left_out.add("window_attention")
    ops = [op for op in CHECKS if op not in left_out]
    check_kernels(model.config, model.device, model.dtype, ops)


def check_kernels(
    config: LMConfig, where: torch.device, dtype: torch.dtype, ops: Iterable[str]
) -> None:
    """Hold the kernels of `ops`, keys of CHECKS, against their references on device `where`."""
    seed = secrets.randbits(31)
    for op in ops:
        random = torch.Generator().manual_seed(seed)
        given = Inputs(config=config, device=where, dtype=dtype, random=random)
        if not CHECKS[op](given):
            raise SelfCheckError(
                f"the {op} kernel does not agree with its reference on {device_name(where)} "
                f"(random inputs of seed {seed}), so no speed is printed; "
                f"run the tests of strata/kernels/{op}"
            )


def check_engine(model: LanguageModel) -> None:
    """Decode a few tokens with every page resident and with the minimum ring; compare all bits."""
    seed = secrets.randbits(31)
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(model.config.vocab, (ENGINE_CELLS,), generator=random).tolist()
    minimum = ENGINE_SELECT + tail_pages(PAGE_CELLS) * PAGE_CELLS
    if not torch.equal(_logits(model, ids, 0), _logits(model, ids, minimum)):
        raise SelfCheckError(
            f"the engine's logits with a ring of {minimum} cells are not those with every page "
            f"resident, on {device_name(model.device)} (random prompt of seed {seed}), so no "
            "speed is printed; run the tests of strata/kv"
        )


class _Recorder(Sampler):
    """A greedy sampler that keeps what it drew from."""

    def __init__(self) -> None:
        super().__init__(SamplingParams())
        self.seen: list[torch.Tensor] = []

    def scores(
        self, logits: torch.Tensor, positions: torch.Tensor, known: Sequence[int] = ()
    ) -> torch.Tensor:
        """Keep `logits` and pass them on."""
        self.seen.append(logits.clone())
        return super().scores(logits, positions, known)


def _logits(model: LanguageModel, ids: list[int], ring: int) -> torch.Tensor:
    """Return the logits [steps, V] of a continuation with a ring of `ring` cells (0: all)."""
    config = SessionConfig(
        kv=KvConfig(resident_cells=ring, selection=Selection(cells=ENGINE_SELECT)),
        spec=SpecConfig(drafts=0),
    )
    session = create_session(model, config, prompt_cells=len(ids), max_new=ENGINE_STEPS, environ={})
    session.prefill(ids)
    recorder = _Recorder()
    session.engine.first_token(recorder)
    for _ in range(1, ENGINE_STEPS):
        session.engine.round(recorder, 0)
    session.close()
    return torch.cat(recorder.seen)
