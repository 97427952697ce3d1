"""Hold `--vram-budget` against what a GPU's driver reports, in one process.

    python experiments/budget/run.py --out experiments/budget/results.jsonl

Everything that will run runs once and is forgotten, so that kernels and libraries are loaded; what
the driver reports then is the start. From there on a thread polls the driver while model, session,
prompt and rounds come and go. One JSON line an arm, printed as it ends.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch

from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.errors import BudgetError
from strata.lm import LanguageModel, bundled_model_path, load_model
from strata.passages import load_passage
from strata.session import create_session

MIB = 1 << 20
NEW_TOKENS = 64
POLL_S = 0.0005


@cache
def nvml_device() -> tuple[Any, Any] | None:
    """Return NVML and its handle of the current device, None where there is no NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties().uuid}"
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except Exception:  # no library, or no right to ask
        return None


def device_bytes() -> int:
    """Return what is in use on the device, whoever uses it."""
    if (nvml := nvml_device()) is not None:  # asks nothing of CUDA, which may be capturing
        return int(nvml[0].nvmlDeviceGetMemoryInfo(nvml[1]).used)
    free, total = torch.cuda.mem_get_info()
    return total - free


def process_bytes() -> int | None:
    """Return what the driver counts for this process alone, None where it does not say."""
    if (nvml := nvml_device()) is None:
        return None
    try:
        for process in nvml[0].nvmlDeviceGetComputeRunningProcesses(nvml[1]):
            if process.pid == os.getpid():
                used: int | None = process.usedGpuMemory
                return used
    except Exception:  # no right to ask, or another name space
        pass
    return None


class Poll:
    """The most bytes in use while inside."""

    def __enter__(self) -> Poll:
        self.peak, self._done = device_bytes(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._done.is_set():
            self.peak = max(self.peak, device_bytes())
            time.sleep(POLL_S)

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()
        self.peak = max(self.peak, device_bytes())


def forget() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def run_once(
    model: LanguageModel, ids: list[int], *, drafts: int, select: int, budget: int | None
) -> dict[str, Any]:
    """Run a session from nothing to NEW_TOKENS tokens, and return its account."""
    config = SessionConfig(
        kv=KvConfig(resident_cells=8_192, selection=Selection(cells=select)),
        spec=SpecConfig(drafts=drafts),
        vram_budget_bytes=budget,
    )
    session = create_session(model, config, prompt_cells=len(ids), max_new=NEW_TOKENS, environ={})
    created = device_bytes()
    session.prefill(ids)
    prompted = device_bytes()
    session.generate(SamplingParams(max_new=NEW_TOKENS, ignore_eos=True))
    account = {
        "ring": session.decision.pool_cells,
        "expert_slots": session.expert_slots,
        "ledger": session.ledger,
        "created": created,
        "prompted": prompted,
    }
    session.close()
    return account


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    parser.add_argument("--depths", type=int, nargs="+", default=[8_192, 32_768, 131_072])
    parser.add_argument("--budgets", type=int, nargs="+", default=[40, 48, 64, 80], help="MiB")
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 3])
    parser.add_argument("--selects", type=int, nargs="+", default=[2_048])
    parser.add_argument("--seconds", type=float, default=600, help="begin no arm after these")
    given = parser.parse_args()
    begun = time.monotonic()

    def report(**figure: Any) -> None:
        line = json.dumps({"device": torch.cuda.get_device_name(), **figure})
        print(line, flush=True)
        if given.out:
            with given.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    model = load_model(bundled_model_path(), "cuda")
    passages = {depth: load_passage(f"{depth}:0", model.tokenizer) for depth in given.depths}
    arms = [(d, n, s) for s in given.selects for d in given.depths for n in given.drafts]
    for depth, drafts, select in arms:
        run_once(model, passages[depth], drafts=drafts, select=select, budget=256 * MIB)
    del model
    forget()
    start, own_start = device_bytes(), process_bytes()
    report(
        kind="start",
        driver=start,
        nvml=nvml_device() is not None,
        process=own_start,
        reserved=torch.cuda.memory_reserved(),
        allocated=torch.cuda.memory_allocated(),
        seconds=time.monotonic() - begun,
    )
    for mib in given.budgets:
        model = load_model(bundled_model_path(), "cuda")
        for depth, drafts, select in arms:
            if time.monotonic() - begun > given.seconds:
                report(kind="cut", budget_mib=mib, depth=depth, drafts=drafts)
                continue
            budget, said = mib * MIB, {"budget_mib": mib, "depth": depth, "drafts": drafts}
            forget()
            torch.cuda.reset_peak_memory_stats()
            before = device_bytes() - start
            try:
                with Poll() as poll:
                    account = run_once(
                        model, passages[depth], drafts=drafts, select=select, budget=budget
                    )
            except BudgetError as error:
                report(kind="refused", **said, select=select, error=str(error))
                continue
            own = process_bytes()
            report(
                kind="budget",
                **said,
                select=select,
                peak=poll.peak - start,
                of_budget=(poll.peak - start) / budget,
                over=poll.peak - start - budget,
                before=before,
                created=account.pop("created") - start,
                prompted=account.pop("prompted") - start,
                reserved_peak=torch.cuda.max_memory_reserved(),
                allocated_peak=torch.cuda.max_memory_allocated(),
                process=None if own is None or own_start is None else own - own_start,
                ledger_sum=sum(account["ledger"].values()),
                **account,
            )
        del model
        forget()


if __name__ == "__main__":
    main()
