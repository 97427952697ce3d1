"""Microseconds of selection, resolve, routing, expert product and head inside captured graphs.

    python experiments/kernels/run.py --out experiments/kernels/results.jsonl

Sizes are the bundled model's. Each figure is the median of seven samples (min and max beside it) of
one call among many in a graph; a sample replays the graph for about 20 ms. A resolve gets lists
that drift over more pages than there are slots, so that it misses; the misses it had are counted
on the device and written beside its time. One JSON line a figure, printed as it is ready.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from strata.bench.experts import measure_experts
from strata.bench.timing import capture, require_gpu, time_calls
from strata.kernels.experts import triton as experts
from strata.kernels.head import triton as head
from strata.kernels.resolve import Admitted, ResolveState
from strata.kernels.resolve import triton as residency
from strata.kernels.select import triton as select
from strata.lm import bundled_model_path
from strata.lm.config import load_config

SAMPLES = 7
CALLS = 20
ROWS = (1, 2, 4, 8)
SELECTED = 128
TAIL = 2


def timed(body: Callable[[int], None], calls: int = CALLS) -> dict[str, float]:
    """Return the time of one of `calls` calls of `body`, which is told its number."""

    def every() -> None:
        for call in range(calls):
            body(call)

    graph = capture(every)
    return asdict(time_calls(graph.replay, calls=calls, samples=SAMPLES))


def time_select(device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield scoring and choosing by depth and rows."""
    bounds = [torch.randn(1, 8_256, 128, device=device) for _ in range(6)]  # one a layer
    for pages in (160, 2_080, 8_256):
        for rows in ROWS:
            q = torch.randn(rows, 1, 8, 64, device=device).bfloat16()
            own = torch.full((rows,), pages - 1, device=device)
            scores = torch.empty(rows, 8_256, device=device)
            out = torch.empty(rows, SELECTED, dtype=torch.int32, device=device)

            def score(call: int, q=q, own=own, scores=scores) -> None:  # type: ignore[no-untyped-def]
                select.score_pages(q, bounds[call % 6], own, tail=TAIL, out=scores)

            def choose(call: int, own=own, scores=scores, out=out) -> None:  # type: ignore[no-untyped-def]
                select.choose_pages(scores, own, count=SELECTED, tail=TAIL, out=out)

            for name, body in (("score", score), ("choose", choose)):
                yield {"op": name, "pages": pages, "rows": rows, **timed(body)}


def time_resolve(device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield resolves by policy, slots, rows and fresh pages."""
    for victims in ("clock", "lrfu"):
        for slots in (512, 2_048):
            for rows in (1, 2, 8):
                for fresh in (0, 4, 16, 38):
                    yield {
                        "op": "resolve",
                        "victims": victims,
                        "slots": slots,
                        "rows": rows,
                        **resolve_figure(device, victims, slots, rows, fresh),
                    }


def resolve_figure(
    device: torch.device, victims: Any, slots: int, rows: int, fresh: int
) -> dict[str, Any]:
    """Time resolves of rows that read the same pages, `fresh` of them new each call."""
    state = ResolveState.empty(1, 8_256, slots, victims, device)
    out = Admitted.empty(1, SELECTED * rows, device)
    keep = torch.tensor([8_250], device=device)
    calls = min(max(CALLS, 2 * slots // max(fresh, 1)), 256) if fresh else CALLS
    lists = []
    for call in range(calls):
        drift = torch.arange(fresh) + call * fresh
        row = torch.cat([torch.arange(SELECTED - fresh), SELECTED + drift % 8_000]).sort().values
        lists.append(torch.stack([row] * rows).int().to(device))

    def body(call: int) -> None:
        residency.resolve(state, lists[call], out, layer=0, keep_from=keep, distinct=rows == 1)

    figure = timed(body, calls)
    lookups, _, misses, _ = state.counters[0].tolist()
    return {"misses_a_call": misses / lookups * SELECTED, **figure}


def time_experts(device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield routing, and what `strata bench experts` times by rows and misses."""
    router = (torch.randn(48, 256, device=device) / 16).bfloat16()
    for rows in ROWS:
        x = torch.randn(rows, 256, device=device).bfloat16()

        def route(_: int, x=x) -> None:  # type: ignore[no-untyped-def]
            experts.route(x, count=4, normalise=True, router=router)

        yield {"op": "route", "rows": rows, **timed(route)}
    config = load_config(bundled_model_path())
    for figure in measure_experts(config, list(ROWS), [0, 1, 4], SAMPLES):
        yield {
            "op": figure.op,
            "rows": figure.rows,
            "misses": figure.misses,
            **asdict(figure.timing),
        }


def time_head(device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield greedy and sampled draws by rows."""
    weight = (torch.randn(8_192, 256, device=device) / 16).bfloat16()
    norm = torch.ones(256, device=device).bfloat16()
    seed, temperature = torch.tensor([7], device=device), torch.tensor([0.8], device=device)
    for rows in ROWS:
        x = torch.randn(rows, 256, device=device).bfloat16()
        positions = torch.arange(rows, device=device)
        for sampled in (False, True):

            def draw(_: int, x=x, positions=positions, sampled=sampled) -> None:  # type: ignore[no-untyped-def]
                head.draw(
                    x,
                    norm,
                    weight,
                    eps=1e-6,
                    positions=positions if sampled else None,
                    seed=seed if sampled else None,
                    temperature=temperature if sampled else None,
                    with_logits=False,
                )

            yield {"op": "head", "rows": rows, "sampled": sampled, **timed(draw)}


def main() -> None:
    """Time what was asked for and write it down."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ops", nargs="*", default=["select", "resolve", "experts", "head"])
    args = parser.parse_args()
    device = require_gpu("this experiment")
    ops = {
        "select": time_select,
        "resolve": time_resolve,
        "experts": time_experts,
        "head": time_head,
    }
    with args.out.open("w") as out:
        for name in args.ops:
            for figure in ops[name](device):
                line = json.dumps(figure)
                print(line, flush=True)
                out.write(line + "\n")


if __name__ == "__main__":
    main()
