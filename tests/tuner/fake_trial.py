"""A trial server without a model, for what a real one cannot be asked to do: crash, hang, lie.

The seed of the passage says what happens; every other seed is measured, with made-up figures.
Only failures are tested with it; whatever a real engine can do is tested on the real one.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from tuner_samples import FACTS

from strata.errors import BudgetError
from strata.tuner.arms import PairSpec
from strata.tuner.environment import EngineFacts
from strata.tuner.measure import RunResult
from strata.tuner.worker import serve

CRASH, HANG, KILLED, NO_MEMORY, TORCH_MEMORY, OTHER_TOKENS, OTHER_ROUNDS, LATE, KILL_SERVER = range(
    101, 110
)
KILL_PARENT = 110
"""The process above the server: a driver, or the actor of a Ray worker."""
BOTH, BESIDE, ALONE, HANG_AFTER, KILLED_OPENING, NO_TIME = range(111, 117)
"""No memory: for either ring; for the default beside the other; for the default by itself; for the
ring, after which the default hangs. And a kill while the ring's session opens, and runs that took
no time."""


class FakeEngine:
    def __init__(self, pids: Path | None, delay_s: float) -> None:
        self.pids = pids
        self.delay_s = delay_s

    def prepare(self) -> None:
        self._note()

    def describe(self, passages: list[str], plans: list[str]) -> EngineFacts:
        return FACTS

    def conditions(self) -> dict[str, object]:
        return {"host": "fake", "server": os.getppid()}

    def open_bench(self, spec: PairSpec, ring_cells: int) -> FakeBench:
        self._note()
        return FakeBench(spec, ring_cells, self.delay_s)

    def _note(self) -> None:
        if self.pids is not None:
            with self.pids.open("a") as file:
                file.write(f"{os.getpid()}\n")


class FakeBench:
    default_decode_s = 0.0
    arms_open = 0

    def __init__(self, spec: PairSpec, ring_cells: int, delay_s: float) -> None:
        self.spec = spec
        self.is_arm = ring_cells != spec.default_ring_cells
        self.seed = int(spec.passage.partition(":")[2])
        self.delay_s = delay_s
        self.runs = 0
        if self.seed == NO_MEMORY and self.is_arm:
            raise BudgetError("40 MiB cannot hold 100 MiB")
        self._fail_to_open()
        FakeBench.arms_open += self.is_arm

    def warm_up(self, num_tokens: int) -> None:
        assert num_tokens == self.spec.warm_up

    def run(self) -> RunResult:
        self.runs += 1
        time.sleep(self.delay_s)
        if self.is_arm or (self.seed == LATE and self.runs == 2):
            self._fail()
        lies = self.seed == NO_TIME and self.is_arm
        rounds = self.spec.max_new - 1 + (self.seed == OTHER_ROUNDS and self.is_arm)
        return RunResult(
            tokens=self.spec.max_new,
            token_hash=("bb" if self.seed == OTHER_TOKENS and self.is_arm else "aa") * 32,
            rounds=rounds,
            decode_s=0.01,
            rounds_per_s=float("inf") if lies else rounds / 0.01,
            tok_s=rounds / 0.01,
            tokens_per_round=1.0,
            accepted=[],
            drafted=[],
            tpot_p50_ms=1.0,
            tpot_p99_ms=2.0,
            prefill_s=0.1,
            ttft_ms=101.0,
            kv_lookups=1,
            kv_hits=1,
            kv_misses=0,
            kv_bytes=0,
            kv_overflows=0,
            expert_lookups=0,
            expert_misses=0,
            expert_slots=None,
            ledger={"weights": 1},
            mtp_window_cells=None,
        )

    def close(self) -> None:
        FakeBench.arms_open -= self.is_arm

    def _fail_to_open(self) -> None:
        short = {BOTH: True, HANG_AFTER: self.is_arm, ALONE: not self.is_arm}
        short[BESIDE] = not self.is_arm and FakeBench.arms_open > 0
        if short.get(self.seed):
            raise BudgetError(f"no room for {'the ring' if self.is_arm else 'the default'}")
        if self.seed == HANG_AFTER:
            time.sleep(60)
        if self.seed == KILLED_OPENING and self.is_arm:
            os.kill(os.getpid(), signal.SIGKILL)

    def _fail(self) -> None:
        if self.seed in (CRASH, LATE):
            raise ZeroDivisionError("a bug")
        if self.seed == HANG:
            time.sleep(60)
        if self.seed == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.seed == TORCH_MEMORY:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")
        if self.seed == KILL_SERVER:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        if self.seed == KILL_PARENT:
            stat = Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
            time.sleep(60)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--pids", type=Path)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--isolation", default="process")
    parser.add_argument("--number", type=int)
    options = parser.parse_args()
    engine = FakeEngine(options.pids, options.delay)
    return serve(engine, parent=options.parent, isolation=options.isolation)


if __name__ == "__main__":
    sys.exit(main())
