"""Write a made-up study of a plan, to try the analysis on before there is a measurement.

    python experiments/h200-campaign/planted.py experiments/plans/h200-own.toml planted-own.jsonl

Round times are those that the cost model, fitted to experiments/trade/results-2.jsonl, predicts for
the plan's sessions, with the expert slots that the engine's ledger gives them. On top lies what the
model does not know: an error of its own for each (tier, mode, ring), which is the same on every
passage, one for each pair, and one for each run. Nothing of this is a measurement, and the device
it names is none.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1] / "cost-model"))
from grid import read_grid

from strata.cli.model_ledger import Ask, Ledger, checkpoint_folder
from strata.config import Window
from strata.errors import BudgetError
from strata.models.evaluate import finished
from strata.models.latency import RoundTime
from strata.tuner.arms import ORDER, ArmGrid, PairSpec
from strata.tuner.environment import EngineFacts
from strata.tuner.plan import Plan, load_plan
from strata.tuner.record import TrialRecord, planned
from strata.tuner.study import create_study

TRADE = Path(__file__).parents[1] / "trade" / "results-2.jsonl"
LAYERS, EXPERTS_A_TOKEN, ROUNDS, REPEATS = 6, 4, 128, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Standard deviations of log time: of an arm's truth, a passage's pair, and a run."""

    arm: float
    pair: float
    run: float = 0.005
    passage: float = 0.03


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan")
    parser.add_argument("out", type=Path)
    parser.add_argument("--arm-sd", type=float, default=0.015)
    parser.add_argument("--pair-sd", type=float, default=0.015)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    plan = load_plan(args.plan)
    made = Made.of(plan, Noise(arm=args.arm_sd, pair=args.pair_sd), args.seed)
    args.out.write_text("".join(f"{line}\n" for line in made.lines()), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Made:
    """A plan's grid and what each of its sessions would take."""

    grid: ArmGrid
    part: RoundTime
    slots: dict[tuple[int, str, int], int | None]
    noise: Noise
    seed: int

    @classmethod
    def of(cls, plan: Plan, noise: Noise, seed: int) -> Made:
        """Ask the trade sweep for times, and the ledger for what fits."""
        if plan.grid.default_ring == "auto":
            raise SystemExit("the plan must name its default ring")
        grid = ArmGrid(plan, plan.grid.default_ring)
        both = [finished(read_grid([TRADE], context=context)) for context in ("own", "shared")]
        trials = pd.concat(both, ignore_index=True)
        trials["trial_id"] = trials["pair_id"] = trials.index.astype(str)
        return cls(grid, RoundTime.learn(trials), _slots(grid), noise, seed)

    def lines(self) -> Iterator[str]:
        """Yield the study, then its trials."""
        import json

        facts = EngineFacts(
            device="made up", model_hash="0" * 64, kv_dtype="bfloat16", has_mtp=True,
            max_positions=None, default_ring_cells=self.grid.default_ring_cells,
            passages_sha256="0" * 64, engine_version="0.1.0+planted", engine_commit=None,
            worker="made up", environment={},
        )  # fmt: skip
        study = create_study(self.grid, facts, created_at="2026-01-01T00:00:00+00:00")
        yield json.dumps(study.to_json())
        confirmed = self.grid.plan.passages.confirm
        if confirmed != "all":
            raise SystemExit("only a plan that confirms every ring can be made up whole")
        for pair in self.grid.every_pair(study=study.study):
            yield from (run.to_line() for run in self.runs(pair))

    def runs(self, pair: PairSpec) -> list[TrialRecord]:
        """Return the runs of one pair."""
        asked = pd.DataFrame([planned(pair, position) for position in range(len(ORDER))])
        slots = [self.slots[pair.tier_cells, pair.mode, ring] for ring in asked["ring_cells"]]
        common = {
            "message": "", "device": "made up", "model_hash": "0" * 64,
            "engine_version": "0.1.0+planted", "worker": "made up",
            "started_at": "2026-01-01T00:00:00+00:00", "conditions": {},
        }  # fmt: skip
        if None in slots:
            return [
                TrialRecord(**planned(pair, position), kind="out of memory", **common)
                for position in range(len(ORDER))
            ]
        asked = asked.assign(expert_slots=slots)
        tokens = self._tokens_per_round(pair, asked)
        seconds = self.part.seconds(asked) * np.exp(self._log_noise(pair, asked))
        features = self.part.features
        pages = features.missed_cells(asked, np.full(len(asked), tokens)) / pair.page_cells
        experts = features.missed_experts(asked)
        lookups = ROUNDS * (1 + pair.spec) * LAYERS
        return [
            TrialRecord(
                **planned(pair, position),
                kind="ok",
                tokens=round(ROUNDS * tokens),
                token_hash=pair.passage,
                rounds=ROUNDS,
                decode_s=REPEATS * ROUNDS * seconds[position],
                rounds_per_s=1 / seconds[position],
                tok_s=tokens / seconds[position],
                tokens_per_round=tokens,
                accepted=[round(ROUNDS * (tokens - 1) / max(pair.spec, 1))] * pair.spec,
                drafted=[ROUNDS] * pair.spec,
                kv_lookups=lookups * 128,
                kv_hits=max(0, lookups * 128 - round(pages[position] * ROUNDS)),
                kv_misses=min(lookups * 128, round(pages[position] * ROUNDS)),
                kv_overflows=0,
                expert_lookups=lookups * EXPERTS_A_TOKEN,
                expert_misses=round(experts[position] * ROUNDS),
                expert_slots=slots[position],
                repeats=REPEATS,
                **common,
            )
            for position in range(len(ORDER))
        ]

    def _tokens_per_round(self, pair: PairSpec, asked: pd.DataFrame) -> float:
        if not pair.spec:
            return 1.0
        expected = float(self.part.acceptance.tokens_per_round(asked)[0])
        moved = expected + 0.3 * self._draw("tokens", pair.passage)
        return float(np.clip(round(moved * ROUNDS) / ROUNDS, 1.0, 1 + pair.spec))

    def _log_noise(self, pair: PairSpec, asked: pd.DataFrame) -> np.ndarray:
        place = (pair.tier_cells, pair.mode)
        shared = self.noise.passage * self._draw("passage", pair.passage, pair.mode)
        own = [
            self.noise.arm * self._draw("arm", *place, pool)
            + self.noise.pair * self._draw("pair", *place, pool, pair.passage) / np.sqrt(2)
            for pool in asked["pool_cells"]
        ]
        run = [self._draw("run", pair.pair_id, position) for position in range(len(ORDER))]
        return shared + np.array(own) + self.noise.run * np.array(run)

    def _draw(self, *key: object) -> float:
        import hashlib

        digits = hashlib.sha256(repr((self.seed, *key)).encode()).digest()[:8]
        return float(np.random.default_rng(int.from_bytes(digits, "little")).normal())


def _slots(grid: ArmGrid) -> dict[tuple[int, str, int], int | None]:
    """Return the expert slots beside each arm's ring, None where it does not fit."""
    plan, found = grid.plan, dict[tuple[int, str, int], int | None]()
    session = plan.session
    ledger = Ledger.open(checkpoint_folder(plan.model), "bfloat16")
    for arm in grid.arms():
        ask = Ask(
            depth_cells=arm.tier_cells,
            max_new=plan.measure.max_new,
            drafts=session.drafts if arm.mode == "on" else 0,
            select=session.select,
            page_cells=session.page,
            window=Window(cells=int(session.mtp_window)),
            budget_bytes=session.vram_budget,
            context_cells=None if session.context == "own" else session.context,
        )
        try:
            slots = ledger.expert_slots(ask, arm.ring_cells)
        except BudgetError:
            slots = None
        found[arm.tier_cells, arm.mode, arm.ring_cells] = slots
    return found


if __name__ == "__main__":
    main()
