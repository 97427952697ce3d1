"""Which pages would a round have to fetch for the next one? Predictors over one recorded trace.

The bundled model continues a passage on the CPU and selects pages. What each layer selected and
scored is replayed against a ring that replaces the least recently read page; each predictor names
pages without a slot behind every round, which take the slots of the least recently read ones.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from strata.captured import CapturedEngine, pages
from strata.config import KvConfig, SamplingParams, Selection, SessionConfig, SpecConfig
from strata.kernels.select import select_pages
from strata.lm import bundled_model_path, load_model
from strata.passages import load_passage
from strata.session import create_session

WARM_ROUNDS, WITHIN = 16, 8
Step = tuple[set[int], torch.Tensor, int]
"""Pages selected, scores of every page, the page that the row stands in."""


class Past:
    """What a predictor may know of one layer behind round `at`."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps, self.at = steps, 0
        self.ring: OrderedDict[int, None] = OrderedDict()
        self.reads: dict[int, int] = defaultdict(int)
        self.last_read: dict[int, int] = {}

    def best(self, keys: dict[int, float]) -> list[int]:
        """Return pages without a slot, those of the largest key first."""
        older = self.steps[self.at][2] - 1
        absent = [page for page in keys if page not in self.ring and 1 <= page < older]
        return sorted(absent, key=lambda page: (-keys[page], page))


def by_score(past: Past) -> list[int]:
    return past.best(dict(enumerate(past.steps[past.at][1].tolist())))


def by_mean_score(past: Past) -> list[int]:
    scores = [step[1] for step in past.steps[max(0, past.at - 7) : past.at + 1]]
    return past.best(dict(enumerate(torch.stack(scores).mean(0).tolist())))


def by_reads(past: Past) -> list[int]:
    return past.best(dict(past.reads))


def by_last_read(past: Past) -> list[int]:
    return past.best({page: float(at) for page, at in past.last_read.items()})


def by_neighbour(past: Past) -> list[int]:
    selected, scores, _ = past.steps[past.at]
    beside = {page + side for page in selected for side in (-1, 1)}
    return past.best({page: float(scores[page]) for page in beside if 0 <= page < len(scores)})


def oracle(past: Past) -> list[int]:
    following = past.steps[past.at + 1 : past.at + 2]
    return past.best(dict.fromkeys(following[0][0] if following else (), 1.0))


def replay(
    steps: list[Step], slots: int, predict: Callable[[Past], list[int]] | None, count: int
) -> tuple[int, int, int, int]:
    """Return misses, pages fetched ahead, those read by the next round, and within WITHIN."""
    past, totals = Past(steps), [0, 0, 0, 0]
    newest = steps[0][2]
    past.ring.update(dict.fromkeys(range(newest - slots + 1, newest + 1)))
    for at, (selected, _, own) in enumerate(steps):
        past.at, counted = at, at >= WARM_ROUNDS
        totals[0] += counted * len(selected - past.ring.keys())
        for page in sorted(selected):
            past.reads[page] += 1
            past.last_read[page] = at
            if page not in past.ring:
                del past.ring[next(old for old in past.ring if old not in selected)]
            past.ring[page] = None
            past.ring.move_to_end(page)
        wanted = predict(past)[:count] if predict else []
        for page in wanted:
            kept = selected | {*wanted}
            del past.ring[next(old for old in past.ring if old not in kept and old < own - 1)]
            past.ring[page] = None
            soon = [page in step[0] for step in steps[at + 1 : at + 1 + WITHIN]]
            totals[1] += counted
            totals[2] += counted and any(soon[:1])
            totals[3] += counted and any(soon)
    return totals[0], totals[1], totals[2], totals[3]


def record(cells: int, select: int, new: int) -> list[list[Step]]:
    """Return the steps of every layer, by layer."""
    torch.set_num_threads(1)
    model = load_model(bundled_model_path(), "cpu")
    kv = KvConfig(selection=Selection(cells=select), resident_cells=4 * select)
    config = SessionConfig(kv=kv, spec=SpecConfig(drafts=0))
    session = create_session(model, config, prompt_cells=cells, max_new=new, environ={})
    e = session.engine
    session.engine = CapturedEngine(e.model, e.kv, e.experts, e.drafter)
    session.prefill(load_passage(f"{cells}:5", model.tokenizer))
    steps: list[Step] = []

    def listen(q: torch.Tensor, bounds: torch.Tensor, own: torch.Tensor, **rest: Any) -> Any:
        chosen = select_pages(q, bounds, own, **rest)
        steps.append(({*chosen[-1].tolist()}, rest["scores"][-1].clone(), int(own[-1])))
        return chosen

    with mock.patch.object(pages, "select_pages", listen):
        session.generate(SamplingParams(max_new=new, ignore_eos=True))
    return [steps[layer :: model.config.layers] for layer in range(model.config.layers)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=8_192)
    parser.add_argument("--select", type=int, default=512)
    parser.add_argument("--new", type=int, default=160)
    args = parser.parse_args()
    layers = record(args.cells, args.select, args.new)
    rounds = len(layers[0]) - WARM_ROUNDS
    print("| ring | predictor | pages a layer | misses a round | ahead | next | within 8 |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    named = (by_score, by_mean_score, by_reads, by_last_read, by_neighbour, oracle)
    for times in (2, 4, 8):
        slots = times * args.select // 16
        for predict, count in [(None, 0), *((p, n) for p in named for n in (2, 8))]:
            parts = [replay(steps, slots, predict, count) for steps in layers]
            misses, ahead, soon, within = map(sum, zip(*parts, strict=True))
            name = predict.__name__ if predict else "none"
            shares = f"{soon / max(1, ahead):.0%} | {within / max(1, ahead):.0%}"
            print(
                f"| {times * args.select} | {name} | {count} | {misses / rounds:.1f} | "
                f"{ahead / rounds:.1f} | {shares} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
