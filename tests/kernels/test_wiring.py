"""The engine on the kernels: what the eager path dispatches to gives the reference's tokens."""

from __future__ import annotations

import pytest
import torch

from strata.arena import Arena
from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.experts.cache import PooledExperts, ResidentExperts
from strata.kernels import device
from strata.kernels.experts import expert_product
from strata.lm import LanguageModel
from strata.session import create_session
from tests.conftest import prompt_of
from tests.kernels.devices import DEVICES, rms_ratio, seed_by

pytest.importorskip("triton")


@pytest.mark.parametrize("where", DEVICES)
@pytest.mark.parametrize("slots", [3, 16])
def test_a_pool_multiplies_what_it_gathers(
    where: str, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(slots)
    target = torch.device(where)
    dtype = torch.float32 if where == "cpu" else torch.bfloat16
    host = (torch.randn(16, 24, 32) / 32**0.5).to(dtype)
    host = host.pin_memory() if where == "cuda" else host
    fused = PooledExperts(host, slots, Arena(1 << 18, target))
    plain = PooledExperts(host, slots, Arena(1 << 18, target))
    resident = ResidentExperts(host.to(target))
    for step in range(6):
        x = torch.randn(1 + step % 4, 32).to(target, dtype)
        experts = torch.stack([torch.randperm(16)[:2] for _ in x]).to(target)
        weights = torch.rand(len(x), 2).to(target, dtype)
        with monkeypatch.context() as patch:
            patch.setattr(device, "has_kernels", lambda _: True)
            got = fused.product(x, experts, weights)
            assert torch.equal(got, resident.product(x, experts, weights))
        expected = expert_product(x, *plain.gather(experts.flatten()), weights)
        assert rms_ratio(got, expected) < (1e-6 if where == "cpu" else 2e-2)
        assert fused.counters == plain.counters
        assert torch.equal(fused.residency.table, plain.residency.table)


def test_a_session_draws_the_same_tokens_on_interpreted_kernels(
    tiny: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled where there is a device")
    seed_by(12, monkeypatch)
    ids = prompt_of(tiny, 60, seed=1)
    config = SessionConfig(
        kv=KvConfig(resident_cells=32, selection=Selection(cells=20), page_cells=4),
        spec=SpecConfig(drafts=2, window_cells=16),
    )
    params = SamplingParams(max_new=6, ignore_eos=True)
    runs = []
    for kernels in (False, True):
        with monkeypatch.context() as patch:
            patch.setattr(device, "has_kernels", lambda _, kernels=kernels: kernels)
            session = create_session(
                tiny, config, prompt_cells=len(ids), max_new=params.max_new, environ={}
            )
            session.prefill(ids)
            runs.append(session.generate(params))
    assert runs[0].tokens == runs[1].tokens
    assert runs[0].kv == runs[1].kv
