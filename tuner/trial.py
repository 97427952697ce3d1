"""The trial process on the real engine: ``python -m strata.tuner.trial``.

It imports torch when it runs and not before; what it times is in `strata.tuner.session_bench`.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata.config import AUTO_WINDOW, DEFAULT_RING_CELLS
from strata.openmp import calm
from strata.tuner import environment
from strata.tuner.arms import PairSpec
from strata.tuner.conditions import conditions
from strata.tuner.environment import AUTO_FACT, EngineFacts
from strata.tuner.measure import Bench
from strata.tuner.passages import hash_passages
from strata.tuner.plan import plan_from_json
from strata.tuner.worker import ISOLATIONS, serve

if TYPE_CHECKING:
    from strata.lm import LanguageModel
    from strata.tuner.shelf import Shelf


class StrataEngine:
    """Opens sessions of one model on one device for the trial server."""

    def __init__(self, model: str, device: str, *, number: int = 0) -> None:
        self._name = model
        self._device = device
        self._number = number
        self._model: LanguageModel | None = None
        self._shelf: Shelf | None = None

    def prepare(self) -> None:
        """Import torch, and load the model where forks can share it: on a CPU.

        A CUDA context cannot be inherited, so there each fork loads the model itself.
        """
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        calm()
        import torch

        import strata.passages
        import strata.session  # noqa: F401
        from strata.tuner.shelf import SHARE, Shelf, memory_bytes

        torch.set_num_threads(1)
        gpus = torch.cuda.device_count() if self._device != "cpu" else 0
        self._shelf = Shelf(memory_bytes() // SHARE // max(1, gpus))
        if self._number and gpus:
            self._take_gpu(gpus)
        if self._device == "cpu" or (self._device == "auto" and not torch.cuda.is_available()):
            self._load()

    def describe(self, passages: list[str], plans: list[str]) -> EngineFacts:
        """Return the facts of a study over these passages, and hold plans against the engine."""
        model = self._in_fork()
        from strata.device import device_name
        from strata.tuner.rehearsal import rehearse

        facts = EngineFacts(
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
            environment=environment.host_facts()
            | {AUTO_FACT: AUTO_WINDOW.word}
            | _torch_facts(model),
        )
        for plan in plans:
            rehearse(model, plan_from_json(plan), facts)
        return facts

    def conditions(self) -> dict[str, Any]:
        """Return what the machine is like at this moment."""
        import torch

        device = None if self._model is None else self._model.device
        if device is None or device.type != "cuda":
            return conditions()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        return conditions(gpu_uuid="GPU-" + uuid.removeprefix("GPU-"))

    def open_bench(self, spec: PairSpec, ring_cells: int) -> Bench:
        """Return what times one side of a pair.

        Each passage's prompt runs once; its state is kept for the other sessions, in this process
        and in those that the server forks later.
        """
        from strata.tuner.session_bench import PromptBench, SessionBench, park_prompt

        model = self._in_fork()
        if spec.purpose == "prefill":
            return PromptBench(model, spec, ring_cells)
        parked = self._shelf.get(spec.passage) if self._shelf else None
        if parked is None or (spec.mode == "on" and parked.drafter_cells is None):
            parked = park_prompt(model, spec)
            if self._shelf:
                self._shelf.put(spec.passage, parked)
        return SessionBench(model, spec, ring_cells, parked)

    def _in_fork(self) -> LanguageModel:
        from strata.device import set_decode_threads

        set_decode_threads(None)
        return self._load()

    def _take_gpu(self, gpus: int) -> None:
        """Have the forks see this worker's GPU alone: none of them has met the driver yet."""
        if self._number >= gpus:
            self._device = f"cuda:{self._number}"  # refused by this name
            return
        seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        os.environ["CUDA_VISIBLE_DEVICES"] = seen.split(",")[self._number]

    def _load(self) -> LanguageModel:
        from strata.lm import bundled_model_path, load_model

        if self._model is None:
            path = bundled_model_path() if self._name == "bundled" else Path(self._name)
            self._model = load_model(path, self._device)
        return self._model


def _torch_facts(model: LanguageModel) -> dict[str, Any]:
    import torch

    facts: dict[str, Any] = {
        "torch": str(torch.__version__),
        "torch_threads": torch.get_num_threads(),
        "worker_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }
    if model.device.type == "cuda":
        properties = torch.cuda.get_device_properties(model.device)
        facts |= {"cuda": torch.version.cuda, "gpu_memory_bytes": properties.total_memory}
        facts["gpus"] = torch.cuda.device_count()
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
