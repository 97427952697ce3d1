"""Launches that overlap give the bits of launches that follow one another.

Held on a device over whole layers of the bundled model, 50 times: a kernel that read before its
wait what an earlier one writes, or a last program that missed a part, would change a bit in some.
"""

from __future__ import annotations

import pytest
import torch

from strata.captured import CapturedEngine
from strata.config import (
    MAX_DRAFTS,
    MAX_ROWS,
    KvConfig,
    SamplingParams,
    Selection,
    SessionConfig,
    SpecConfig,
)
from strata.lm import LanguageModel, bundled_model_path, load_model
from strata.sampling import Sampler
from strata.session import create_session
from tests.conftest import prompt_of

overlap = pytest.importorskip("strata.kernels.overlap")

CELLS = 2_049
"""One more than whole pages, so that a window begins no page."""


def open_engine(model: LanguageModel, select: int, cells: int) -> CapturedEngine:
    """Return an engine behind its prompt whose board holds a whole window of tokens."""
    config = SessionConfig(
        kv=KvConfig(resident_cells=2 * select, selection=Selection(cells=select)),
        spec=SpecConfig(drafts=MAX_DRAFTS, window_cells=100),
        rounds="launched" if model.device.type == "cuda" else "reference",
    )
    session = create_session(model, config, prompt_cells=cells, max_new=16, environ={})
    e = session.engine
    if not isinstance(e, CapturedEngine):
        session.engine = e = CapturedEngine(e.model, e.kv, e.experts, e.drafter)
    session.prefill(prompt_of(model, cells))
    e.first_token(Sampler(SamplingParams()))
    torch.manual_seed(select)
    e._board.tokens.copy_(torch.randint(model.config.vocab, (MAX_ROWS,)))
    e._board.accepted.fill_(MAX_ROWS - 1)
    return e


@torch.inference_mode()
def window(e: CapturedEngine) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the hidden states of a window and what the drafter makes of its last row."""
    board, draft = e._board, e._draft
    assert draft is not None
    hidden = e._layers.run(board, MAX_ROWS, every_page=False).clone()
    draft.write(board.tokens, hidden, board.positions, committed=False)
    return hidden, draft.output(board.positions[-1:], board.accepted).clone()


def check(e: CapturedEngine, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    together = [window(e) for _ in range(runs)]
    with monkeypatch.context() as patch:
        patch.setattr(overlap, "_can_overlap", lambda _: False)
        apart = window(e)
    for hidden, drafted in (*together, apart):
        assert not hidden.isnan().any()
        assert torch.equal(hidden, apart[0])
        assert torch.equal(drafted, apart[1])


@pytest.mark.parametrize("select", [0, 96])
def test_a_window_can_be_run_again(
    tiny: LanguageModel, select: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU nothing overlaps: what the device is asked below is a fair question."""
    assert overlap.overlapped(torch.zeros(1)) == {"OVERLAP": False}
    assert overlap.overlapped(torch.zeros(1), joined=True) == {"OVERLAP": False}
    check(open_engine(tiny, select, cells=305), 2, monkeypatch)


@pytest.mark.gpu
@pytest.mark.parametrize("select", [0, 256])
def test_launches_that_overlap_give_the_same_bits(
    select: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(bundled_model_path(), "cuda")
    check(open_engine(model, select, CELLS), 50, monkeypatch)
