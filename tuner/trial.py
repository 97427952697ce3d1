"""The trial process on the real engine: ``python -m strata.tuner.trial``.

The only file of the tuner that touches the engine. Everything it measures goes through the same
`create_session` as `strata generate`, with the ring given as the cap of policy `fixed`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata.config import (
    DEFAULT_RING_CELLS,
    KvConfig,
    SamplingParams,
    Selection,
    SessionConfig,
    SpecConfig,
)
from strata.errors import StrataError
from strata.openmp import calm
from strata.tuner import environment
from strata.tuner.arms import PairSpec
from strata.tuner.conditions import conditions
from strata.tuner.environment import EngineFacts
from strata.tuner.measure import RunResult
from strata.tuner.passages import hash_passages
from strata.tuner.worker import ISOLATIONS, serve

if TYPE_CHECKING:
    from strata.lm import LanguageModel


class StrataEngine:
    """Opens sessions of one model on one device for the trial server."""

    def __init__(self, model: str, device: str, *, number: int = 0) -> None:
        self._name = model
        self._device = device
        self._number = number
        self._model: LanguageModel | None = None

    def prepare(self) -> None:
        """Import torch, and load the model where forks can share it: on a CPU.

        A CUDA context cannot be inherited, so there each fork loads the model itself.
        """
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        calm()
        import torch

        import strata.passages
        import strata.session  # noqa: F401

        torch.set_num_threads(1)
        if self._number and self._device != "cpu" and torch.cuda.is_available():
            self._device = f"cuda:{self._number}"
        if self._device == "cpu" or (self._device == "auto" and not torch.cuda.is_available()):
            self._load()

    def describe(self, passages: list[str]) -> EngineFacts:
        """Return the facts of a study over these passages."""
        model = self._in_fork()
        from strata.device import device_name

        return EngineFacts(
            device=device_name(model.device),
            model_hash=model.model_hash,
            kv_dtype=str(model.dtype).removeprefix("torch."),
            has_mtp=model.has_mtp,
            max_positions=model.config.max_positions,
            default_ring_cells=DEFAULT_RING_CELLS[model.device.type],
            passages_sha256=hash_passages(passages, model.tokenizer),
            engine_version=environment.engine_version(),
            engine_commit=environment.engine_commit(),
            worker=environment.machine_id(),
            environment=environment.host_facts() | _torch_facts(model),
        )

    def conditions(self) -> dict[str, Any]:
        """Return what the machine is like at this moment."""
        import torch

        device = None if self._model is None else self._model.device
        if device is None or device.type != "cuda":
            return conditions()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        return conditions(gpu_uuid="GPU-" + uuid.removeprefix("GPU-"))

    def open_bench(self, spec: PairSpec, ring_cells: int) -> SessionBench:
        """Return a session after its prompt."""
        return SessionBench(self._in_fork(), spec, ring_cells)

    def _in_fork(self) -> LanguageModel:
        from strata.device import set_decode_threads

        set_decode_threads(None)
        return self._load()

    def _load(self) -> LanguageModel:
        from strata.lm import bundled_model_path, load_model

        if self._model is None:
            path = bundled_model_path() if self._name == "bundled" else Path(self._name)
            self._model = load_model(path, self._device)
        return self._model


class SessionBench:
    """One session, prefilled once and rewound after every run."""

    def __init__(self, model: LanguageModel, spec: PairSpec, ring_cells: int) -> None:
        from strata.captured import CapturedEngine
        from strata.device import every_core
        from strata.passages import load_passage
        from strata.session import create_session

        prompt = load_passage(spec.passage, model.tokenizer)
        self._params = SamplingParams(max_new=spec.max_new, ignore_eos=True)
        self._session = create_session(
            model,
            _session_config(spec, ring_cells),
            prompt_cells=len(prompt),
            max_new=spec.max_new,
            environ={},
        )
        if self._session.decision.ring_cells != ring_cells:
            raise StrataError(
                f"the session took a ring of {self._session.decision.ring_cells} cells where the "
                f"plan asks for {ring_cells}: {self._session.decision.reason}"
            )
        self.default_decode_s = 1.0 if model.device.type == "cuda" else 0.0
        self._has_window = spec.mode == "on"
        captured = isinstance(self._session.engine, CapturedEngine)
        self._shorter_runs = range(2, spec.spec + 3) if captured else range(0)
        with every_core():
            self._prefill_s = self._session.prefill(prompt).seconds

    def warm_up(self, num_tokens: int) -> None:
        """Decode a few tokens and go back to the state after the prompt.

        The last rounds of a run draft less than the others, and where rounds are captured each
        number of drafts is a graph of its own. Shorter runs, one for each number, capture them all
        before anything is timed.
        """
        for max_new in (num_tokens, *self._shorter_runs):
            self._session.generate(SamplingParams(max_new=max_new, ignore_eos=True))
            self._session.rewind()

    def run(self) -> RunResult:
        """Time one continuation and go back to the state after the prompt."""
        start_s = time.perf_counter()
        done = self._session.generate(self._params)
        self._session.rewind()
        return RunResult(
            tokens=len(done.tokens),
            token_hash=done.token_hash,
            rounds=done.rounds,
            decode_s=done.decode_s,
            rounds_per_s=done.rounds / done.decode_s,
            tok_s=(len(done.tokens) - 1) / done.decode_s,
            tokens_per_round=(len(done.tokens) - 1) / done.rounds,
            accepted=list(done.accepted),
            drafted=list(done.drafted),
            tpot_p50_ms=done.tpot_ms(50) or 0.0,
            tpot_p99_ms=done.tpot_ms(99) or 0.0,
            prefill_s=self._prefill_s,
            ttft_ms=1000 * (self._prefill_s + done.times_s[0] - start_s),
            kv_lookups=done.kv.lookups,
            kv_hits=done.kv.hits,
            kv_misses=done.kv.misses,
            kv_bytes=done.kv.bytes,
            kv_overflows=done.kv.overflows,
            expert_lookups=done.experts.lookups,
            expert_misses=done.experts.misses,
            expert_slots=self._session.expert_slots,
            ledger=dict(self._session.ledger),
            mtp_window_cells=self._session.mtp_window_cells if self._has_window else None,
        )

    def close(self) -> None:
        """Free what the session holds."""
        self._session.close()


def _session_config(spec: PairSpec, ring_cells: int) -> SessionConfig:
    return SessionConfig(
        kv=KvConfig(
            resident_cells=ring_cells,
            victims=spec.victims,
            selection=Selection.parse(spec.select),
            page_cells=spec.page_cells,
        ),
        spec=SpecConfig(drafts=spec.spec, window_cells=spec.mtp_window_cells),
        policy="fixed",
        vram_budget_bytes=spec.vram_budget_bytes,
        max_context_cells=spec.context_cells,
    )


def _torch_facts(model: LanguageModel) -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {
        "torch": str(torch.__version__),
        "torch_threads": torch.get_num_threads(),
    }
    if model.device.type == "cuda":
        properties = torch.cuda.get_device_properties(model.device)
        facts |= {"cuda": torch.version.cuda, "gpu_memory_bytes": properties.total_memory}
    return facts


def main() -> int:
    """Serve pairs over stdin and stdout."""
    parser = argparse.ArgumentParser(prog="python -m strata.tuner.trial")
    parser.add_argument("--model", required=True, help="a checkpoint folder, or bundled")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--parent", type=int, required=True, help="the process to die with")
    parser.add_argument("--isolation", choices=ISOLATIONS, default="process")
    parser.add_argument(
        "--number", type=int, default=0, help="which worker of this machine it is: its GPU"
    )
    options = parser.parse_args()
    engine = StrataEngine(options.model, options.device, number=options.number)
    return serve(engine, parent=options.parent, isolation=options.isolation)


if __name__ == "__main__":
    sys.exit(main())
